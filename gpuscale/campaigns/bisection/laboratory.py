"""Make the runs of a bisection: one session each, in the environment of a trial."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpuscale.base.errors import FileError, UsageError
from gpuscale.base.host import signal_at_parent_death
from gpuscale.campaigns.bisection.decision import Applied, OutOfBudgetError
from gpuscale.campaigns.bisection.kind import CannotBeMadeError, Kind, Setting, last_line
from gpuscale.records import Environment, Run
from gpuscale.store import read_results
from gpuscale.store.files import file_errors


@dataclass(slots=True, kw_only=True)
class Laboratory:
    """Makes runs in the environments of trials, and keeps each run as a results file.

    A killed bisection continues: runs that the folder already has are read instead of repeated.
    Failed runs are repeated, since the reason may be gone.
    """

    kind: Kind
    folder: Path
    scratch: Path
    """Folder for temporary files of the runs, which outlive a torchrun that is killed."""
    measured: Sequence[str]
    """The test file, or the command after `--`."""
    is_command: bool
    options: Sequence[str]
    end_s: float
    """Time by the monotonic clock after which no run is started."""
    made_s: float = 0.0
    """Seconds spent on the runs that this process made."""
    environment: Environment | None = None
    """The machine and software of the latest run."""
    failure: str = ""
    """Reason why the latest failed run has no step time."""
    _counts: Counter[str] = field(default_factory=Counter)

    def make_run(self, applied: Applied) -> float | None:
        """Return the log step time of the environment's next run; None if the run failed."""
        name = self.kind.name_of(applied)
        self._counts[name] += 1
        path = self.folder / "runs" / name / f"{self._counts[name]}.jsonl"
        log_s = self._read(path)
        if log_s is None:
            if time.monotonic() > self.end_s:
                raise OutOfBudgetError("time")
            started_s = time.monotonic()
            with file_errors(path.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                self._measure(applied, path)
                self.made_s += time.monotonic() - started_s
                log_s = self._read(path)
                if log_s is None:
                    # A disk that is full looks like an environment that fails.
                    probe = path.with_suffix(".probe")
                    probe.write_bytes(bytes(2**16))
                    probe.unlink()
        return log_s

    def _measure(self, applied: Applied, path: Path) -> None:
        log = path.with_suffix(".log")
        try:
            setting = self.kind.setting(applied)
        except CannotBeMadeError as error:
            log.write_text(str(error))
            return
        variables = {**os.environ, "TMPDIR": os.fspath(self.scratch)}
        for name, value in setting.variables.items():
            variables.pop(name, None)
            if value is not None:
                variables[name] = value
        if self.is_command:
            # Starting costs a third less without the plugins of others.
            variables |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
            variables |= {"PYTEST_PLUGINS": "pytest_benchmark.plugin"}
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._command(setting, path),
                env=variables,
                cwd=setting.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # A session ends with whoever started it.
                preexec_fn=lambda: signal_at_parent_death(signal.SIGTERM),
            )
            try:
                process.wait()
            finally:
                process.terminate()
                process.wait()

    def _command(self, setting: Setting, path: Path) -> list[str]:
        words = ["--runs", "1", "--results", str(path.absolute()), *self.options]
        if self.is_command:
            return [sys.executable, "-m", "gpuscale", "run", *words, "--", *self.measured]
        cases = ["-p", "gpuscale.plugin", "-p", "no:cacheprovider", *self.measured]
        return [str(setting.python or sys.executable), "-m", "pytest", *cases, *words]

    def _read(self, path: Path) -> float | None:
        log = path.with_suffix(".log")
        runs: Sequence[Run] = ()
        with suppress(FileError):
            results = read_results(path)
            runs, self.environment = results.runs, results.environment
        if not runs:
            self.failure = last_line(log.read_text(errors="replace")) if log.exists() else ""
            return None
        if len(runs) != 1:
            labels = ", ".join(sorted({run.key.label for run in runs}))
            remedy = "name one test as FILE.py::test, one --strategy and one number of --gpus"
            raise UsageError(f"a run measured {labels}; a bisection has one row: {remedy}")
        if runs[0].failure is not None:
            failure = runs[0].failure
            self.failure = failure.message.splitlines()[0].partition(". ")[0]
            if failure.detail:
                self.failure = f"{self.failure.partition(';')[0]}: {last_line(failure.detail)}"
        return runs[0].log_cost if runs[0].is_valid else None
