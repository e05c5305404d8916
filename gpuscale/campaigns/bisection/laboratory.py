"""Measure the runs of a bisection: one session each, in the environment of a trial."""

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gpuscale
from gpuscale.base.errors import FileError, UsageError
from gpuscale.base.host import signal_at_parent_death
from gpuscale.campaigns.bisection.decision import Applied, OutOfBudgetError
from gpuscale.campaigns.bisection.package_sides import last_line
from gpuscale.campaigns.bisection.packages import Environments
from gpuscale.records.software import normalised
from gpuscale.store import read_results
from gpuscale.store.files import file_errors

_PTH = "zz_gpuscale.pth"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(slots=True, kw_only=True)
class Laboratory:
    """Runs in the environments of trials, each kept as a results file.

    Runs that the folder already has are not repeated: a bisection that was killed reads them in
    the same order and goes on.
    """

    environments: Environments
    folder: Path
    measured: Sequence[str]
    """The test file, or the command after `--`."""
    is_command: bool
    options: Sequence[str]
    end_s: float
    """Moment of the monotonic clock after which no run is started."""
    made: int = 0
    made_s: float = 0.0
    """Number of the runs made by this process, and the seconds that they took."""
    failure: str = ""
    """Reason why the latest failed run has no number."""
    _counts: Counter[str] = field(default_factory=Counter)

    def make_run(self, applied: Applied) -> float | None:
        """Return the log step time of the environment's next run; None if it has no number."""
        place = self.environments.place_of(applied)
        self._counts[place.name] += 1
        path = self.folder / "runs" / place.name / f"{self._counts[place.name]}.jsonl"
        ended = path.with_suffix(".ended")
        if not ended.exists():
            if time.monotonic() > self.end_s:
                raise OutOfBudgetError("time")
            self._measure(applied, path)
            ended.touch()
        return self._read(path)

    def _measure(self, applied: Applied, path: Path) -> None:
        started_s = time.monotonic()
        with file_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
        python, log = self.environments.interpreter(applied), path.with_suffix(".log")
        if python is None:
            log.write_text(self.environments.reasons[applied])
            return
        variables = dict(os.environ, VIRTUAL_ENV=str(python.parent.parent))
        variables["PATH"] = f"{python.parent}{os.pathsep}{variables.get('PATH', '')}"
        variables.pop("PYTHONHOME", None)
        words = ["--runs", "1", "--results", str(path.absolute()), *self.options]
        if self.is_command:
            # Starting costs a third less without the plugins of others.
            variables |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
            variables |= {"PYTEST_PLUGINS": "pytest_benchmark.plugin"}
            command = [sys.executable, "-m", "gpuscale", "run", *words, "--", *self.measured]
        else:
            self.lend(applied)
            cases = ["-p", "gpuscale.plugin", "-p", "no:cacheprovider", *self.measured]
            command = [str(python), "-m", "pytest", *cases, *words]
        with file_errors(log), log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # A session ends with whoever started it.
                preexec_fn=lambda: signal_at_parent_death(signal.SIGTERM),
            )
            process.wait()
        self.made += 1
        self.made_s += time.monotonic() - started_s

    def _read(self, path: Path) -> float | None:
        self.failure = last_line(path.with_suffix(".log").read_text(errors="replace"))
        if not path.exists():
            return None
        try:
            runs = read_results(path).runs
        except FileError as error:
            self.failure = str(error)
            return None
        if len(runs) != 1:
            labels = ", ".join(sorted({run.key.label for run in runs})) or "nothing"
            remedy = "name one test as FILE.py::test, one --strategy and one number of --gpus"
            raise UsageError(f"a run measured {labels}; a bisection has one row: {remedy}")
        if runs[0].failure is not None:
            self.failure = runs[0].failure.message.splitlines()[0]
        return runs[0].log_cost if runs[0].is_valid else None

    def lend(self, applied: Applied) -> None:
        """Let an environment import gpuscale and what it needs, but first its own packages."""
        folder = self.folder / "gpuscale_needs"
        if not folder.exists():
            folder.mkdir()
            source = Path(gpuscale.__file__).parent
            changing = {change.name for change in self.environments.changes}
            for file in (source, *needed_files(changing)):
                link = folder / file.name
                if not link.exists():
                    link.symlink_to(file)
        path_file = self.environments.site_of(applied) / _PTH
        path_file.write_text(f"{folder.absolute()}\n")


def needed_files(without: set[str]) -> Iterator[Path]:
    """Yield the files and folders of the packages that gpuscale needs, except those that differ."""
    site = Path(sysconfig.get_path("purelib"))
    waiting, seen = ["gpuscale"], {"gpuscale", *without}
    while waiting:
        try:
            package = importlib.metadata.distribution(waiting.pop())
        except importlib.metadata.PackageNotFoundError:
            continue
        if package.metadata["Name"] != "gpuscale":
            for file in package.files or ():
                # Files outside, such as programs, start with "..".
                if file.parts[0] not in ("..", "__pycache__"):
                    yield site / file.parts[0]
        for asked in package.requires or ():
            name = _NAME.match(asked)
            if name and "extra ==" not in asked and normalised(name[0]) not in seen:
                seen.add(normalised(name[0]))
                waiting.append(name[0])
