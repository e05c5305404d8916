"""A nightly run: measure, retry after a fault, compare, and keep all files in one folder."""

import json
import os
import shutil
import signal
import socket
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from subprocess import Popen, TimeoutExpired

from msgspec.structs import replace

from gpuscale.analysis.nights import nights_of
from gpuscale.analysis.shifts_and_drifts import FEWEST_NIGHTS
from gpuscale.base.errors import ExitCode, FileError
from gpuscale.base.host import text_of
from gpuscale.base.process_ends import ON_VERDICT_S
from gpuscale.base.text import visible
from gpuscale.campaigns.night import outcome
from gpuscale.measure.schedulers import nodes_of_job
from gpuscale.measure.schedulers.scheduler import answer_of
from gpuscale.store.campaign_folders import NightRecord, new_night, nights_folder, record_files
from gpuscale.store.files import read_any
from gpuscale.store.results import RESULTS, read_results

Command = Callable[..., tuple[int, str]]
"""Function that runs a gpuscale command in this process and returns its exit code and output."""
ON_VERDICT = "GPUSCALE_ON_VERDICT"
"""Environment variable with the site's verdict command, which may send mail or open a ticket."""
_LEFT_BY_PYTEST = (RESULTS, "pytest.log", "junit.xml", "fault.txt")
_ENDINGS = {"text": "txt", "json": "json", "markdown": "md", "junit": "xml", "openmetrics": "prom"}


class NightJob:
    """One nightly run on one machine, either in a scheduler's job or without a scheduler."""

    def __init__(
        self, job: str | None, measure: Sequence[str], compare: Sequence[str], command: Command
    ) -> None:
        """`measure` holds arguments for pytest, `compare` holds those for `gpuscale compare`."""
        self._job, self._measure, self._command = job, measure, command
        self._history, words = _without_option(compare, "--history")
        """Folder of nights to judge against; None if there is none, or if a baseline was given."""
        self._baseline = words.pop(0) if words and self._history is None else None
        self._options = words
        self._started = datetime.now().astimezone()
        self._stop = outcome.StopRequest()
        self.folder = Path()
        """Folder of the nightly run, set by `run`."""

    def run(self, name: str) -> ExitCode:
        """Measure, retry if the infrastructure failed, judge, and record; return the exit code."""
        self.folder = self._open(name)
        attempts = [self._try()]
        if attempts[0].faults:
            _say("measuring the missing runs once more")
            attempts.append(self._try())
        compare_exit = self._judge()
        if compare_exit == ExitCode.REGRESSED and self._probe():
            compare_exit = self._judge()
        code = outcome.night_exit(attempts[-1], compare_exit)
        record = self._record(attempts, compare_exit, code)
        meaning = ": ".join(filter(None, (record.night, record.unjudged)))
        self._report(is_judged=compare_exit not in (None, ExitCode.USAGE))
        _say(f"{meaning} (exit {int(code)}); kept in {self.folder}")
        if command := os.environ.get(ON_VERDICT):
            document = self.folder / "comparison.json"
            problem = run_on_verdict(command, document, code=code, meaning=meaning)
            if problem is not None:
                _say(f"{ON_VERDICT}: the command {problem}: {visible(command)}")
            _write_record(self.folder, replace(record, on_verdict=problem or "told"))
        return code

    def _open(self, name: str) -> Path:
        """Validate the baseline; create and return the folder of the nightly run."""
        if self._baseline:
            # Detect an unreadable baseline now, not after an hour of measurements.
            read_any(Path(self._baseline))
        nights = nights_folder(os.environ)
        kept, history = nights / name, Path(self._history or nights)
        # That of the first night does not exist yet.
        if not (history.exists() or kept.resolve().is_relative_to(history.resolve())):
            raise FileError(history, f"there is no such folder; nights of {name} are in {kept}")
        if judge := self._baseline or self._history:
            _say(f"will be judged against {judge}")
        job = f"{self._started:%H%M%S}" if self._job is None else self._job
        folder = new_night(nights, name=name, job=job, day=self._started.date())
        if self._baseline:
            try:
                shutil.copyfile(self._baseline, folder / "baseline.json")
            except OSError as error:
                _say(f"no copy of the baseline was kept ({error.strerror})")
        return folder

    def _try(self) -> outcome.Attempt:
        """Run pytest for all runs that are not yet in the results file; return the outcome."""
        results, log, items, fault = (self.folder / name for name in _LEFT_BY_PYTEST)
        for path in (items, fault):
            path.unlink(missing_ok=True)
        option = "--resume" if self._has_results() else "--results"
        words = *self._measure, option, str(results), "--junitxml", str(items)
        environment = {**os.environ, outcome.FAULT_FILE: str(fault.absolute())}
        exit_code, found = self._stop.run([outcome.own_pytest(), *words], log, environment), None
        # The comparison will report a damaged file.
        with suppress(FileError):
            found = read_results(results) if results.exists() else None
        attempt = outcome.Attempt(
            exit_code=exit_code,
            stopped_by=self._stop.number,
            items=outcome.read_items(items),
            results=found,
            machine=text_of(fault) or None,
        )
        for seen in attempt.faults:
            _say(f"infrastructure: {seen}")
        return attempt

    def _has_results(self) -> bool:
        results = self.folder / RESULTS
        return results.exists() and results.stat().st_size > 0

    def _judge(self) -> int | None:
        """Compare results, save the outcome, return the exit code; None if nothing to compare."""
        results, judges = self.folder / RESULTS, [self._baseline] if self._baseline else []
        nights = Path(self._history).rglob("*.jsonl") if self._history else ()
        others = (path for path in nights if not path.parent.samefile(self.folder))
        if self._history and any(map(_is_counted, others)):
            judges = ["--history", self._history]
        if not judges or not self._has_results():
            return None
        options = [*self._options]
        for name, ending in _ENDINGS.items():
            options += ["--format", f"{name}={self.folder / f'comparison.{ending}'}"]
        code, said = self._command("compare", *judges, str(results), *options)
        if code == ExitCode.USAGE:
            _write_or_say(self.folder / "comparison.txt", said)
        return code

    def _why_unjudged(self) -> str:
        """Explain why a complete night was not judged, and how later nights can be judged."""
        nights = self.folder.parent
        count = sum(map(_is_counted, nights.glob(f"*/{RESULTS}")))
        if self._history:
            return "later nights are judged against it; exit code 4 is expected of a first night"
        if count < FEWEST_NIGHTS:
            expected = f"exit code 4 is expected until {FEWEST_NIGHTS} nights are kept"
            return f"still collecting, night {count} of {FEWEST_NIGHTS}; {expected}"
        return (
            f"judge by these {count} nights with 'compare --history {nights}', or record a "
            "baseline of them (gpuscale baseline record)"
        )

    def _probe(self) -> bool:
        """Run the probes for the likeliest cause of each row's slowdown; False if none was run."""
        root, _ = _without_option(self._measure, "--data-root")
        try:
            rows = json.loads((self.folder / "comparison.json").read_text())["entries"]
            has_probes = bool(self._baseline and read_any(Path(self._baseline)).probes)
        except (OSError, ValueError, FileError):
            return False
        causes = [cause for row in rows for cause in row["causes"][:1]]
        names = sorted({name for cause in causes for name in cause["probes"]})
        options = ["--only", ",".join(names), *(["--data-root", root] if root else [])]
        asked = ("probe", str(self.folder / RESULTS), *options)
        return has_probes and bool(names) and self._command(*asked)[0] in (0, 1)

    def _report(self, *, is_judged: bool) -> None:
        results = self.folder / RESULTS
        if not self._has_results():
            return
        nights = [str(self.folder.parent)]
        if is_judged:
            _, options = _without_option(self._options, "--format")
            if self._history:
                nights = ["--history", self._history, *options]
            else:
                nights += ["--baseline", str(self._baseline), *options]
        page = str(self.folder / "report.html")
        code, _ = self._command("report", str(results), *nights, "--output", page)
        if code != ExitCode.OK:
            _say("the night has no report.html (see above)")

    def _record(
        self, attempts: Sequence[outcome.Attempt], compare_exit: int | None, code: ExitCode
    ) -> NightRecord:
        attempt = attempts[-1]
        meaning = outcome.night_meaning(code, attempt, compare_exit)
        record = NightRecord(
            night=meaning,
            unjudged=self._why_unjudged() if meaning == outcome.UNJUDGED else None,
            exit=int(code),
            pytest_exit=attempt.exit_code,
            compare_exit=compare_exit,
            all_measured=attempt.is_complete,
            infrastructure=tuple(dict.fromkeys(seen for each in attempts for seen in each.faults)),
            left_out=tuple(attempt.items.left_out),
            not_collected=attempt.items.uncollected,
            attempts=len(attempts),
            started=self._started.isoformat(timespec="seconds"),
            finished=datetime.now().astimezone().isoformat(timespec="seconds"),
            host=socket.gethostname(),
            nodes=nodes_of_job(os.environ),
            job=self._job,
            revision=answer_of(["git", "describe", "--always", "--dirty"]) or "unknown",
            gpuscale=NightRecord.own_build(),
            baseline=self._baseline or self._history,
        )
        _write_record(self.folder, record)
        return record


def _is_counted(path: Path) -> bool:
    """True if a results file is readable and has runs usable in a history."""
    with suppress(FileError):
        return bool(nights_of([read_results(path)]))
    return False


def _without_option(words: Sequence[str], option: str) -> tuple[str | None, list[str]]:
    """Remove an option from a command line; return its last value (None if absent) and the rest."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(option, dest="value")
    found, rest = parser.parse_known_args(words)
    return found.value, rest


def run_on_verdict(
    command: str, document: Path, *, code: int, meaning: str, end_s: float = ON_VERDICT_S
) -> str | None:
    """Run a site's command for verdicts; return None on success, else an error (`ended with 3`).

    It gets `document` as stdin, `code` and `meaning` as variables, and at most `end_s` seconds.
    """
    environment = {
        **os.environ,
        "GPUSCALE_NIGHT_EXIT": str(code),
        "GPUSCALE_NIGHT_MEANING": meaning,
        "GPUSCALE_NIGHT_FOLDER": str(document.parent.absolute()),
    }
    try:
        with (document if document.is_file() else Path(os.devnull)).open("rb") as verdict:
            process = Popen(
                ["/bin/sh", "-c", command], stdin=verdict, env=environment, start_new_session=True
            )
    except (OSError, ValueError) as error:
        return f"could not be started ({error})"
    try:
        exit_code = process.wait(end_s)
    except TimeoutExpired:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"did not end within {end_s:g} s and was killed"
    return f"ended with {exit_code}" if exit_code else None


def _write_record(folder: Path, record: NightRecord) -> None:
    for name, text in record_files(record).items():
        _write_or_say(folder / name, text)


def _write_or_say(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        _say(f"{path} cannot be written ({error.strerror}); its text was:\n{text}")


def _say(text: str) -> None:
    print_flushed(f"gpuscale night: {text}\n")


def print_flushed(text: str) -> None:
    """Print a text and flush standard output; do nothing if standard output is closed."""
    with suppress(OSError):
        sys.stdout.write(text)
        sys.stdout.flush()
