"""A nightly run: measure, retry after a fault, compare, and keep all files in one folder."""

import json
import os
import shutil
import socket
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from gpuscale.base.errors import ExitCode, FileError, GpuscaleError, UsageError
from gpuscale.base.printable import visible
from gpuscale.campaigns.night.attempt import (
    FAULT_FILE,
    Attempt,
    night_exit,
    night_meaning,
    read_items,
    read_machine_faults,
    suspected_nodes,
)
from gpuscale.campaigns.night.programs import ON_VERDICT, StopRequest, run_on_verdict
from gpuscale.measure.schedulers import nodes_of_job, scheduler_of_job
from gpuscale.measure.schedulers.placement import EXCLUDED_HOSTS
from gpuscale.measure.schedulers.scheduler import answer_of
from gpuscale.store import read_any, read_results
from gpuscale.store.night_record import (
    FIRST_ATTEMPT,
    NightRecord,
    new_night,
    nights_folder,
    read_night,
    record_files,
)

Command = Callable[..., tuple[int, str]]
"""Function that runs a gpuscale command in this process and returns its exit code and output."""
RETRY_OF = "GPUSCALE_RETRY_OF"
"""Environment variable with the folder of the nightly run that a resubmitted job continues."""
_RESULTS = "results.jsonl"
_LEFT_BY_PYTEST = (_RESULTS, "pytest.log", "junit.xml", "fault.json")
_COMPARISONS = {"json": "json", "markdown": "md", "junit": "xml", "openmetrics": "prom"}
"""Formats in which comparisons are saved, each with its file name extension."""


class NightJob:
    """One nightly run on one machine, either in a scheduler's job or without a scheduler."""

    def __init__(
        self, job: str, measure: Sequence[str], compare: Sequence[str], command: Command
    ) -> None:
        """Take the arguments for pytest (`measure`) and for `gpuscale compare` (may be empty)."""
        self._job, self._measure, self._compare, self._command = job, measure, compare, command
        self._started = datetime.now().astimezone()
        self._stop = StopRequest()
        self._scheduler = scheduler_of_job(os.environ)
        # Nodes as the scheduler names them; empty if it names none.
        self._nodes = nodes_of_job(os.environ)
        self._retry_of = os.environ.get(RETRY_OF)
        self._first_regressed = False
        self.folder = Path()
        """Folder of the nightly run, set by `run`."""

    def run(self, name: str) -> ExitCode:
        """Measure, retry if the infrastructure failed, judge, and write the record."""
        self.folder = self._open(name)
        attempt = self._try("--results")
        if attempt.faults and self._retry_of is None:
            first_exit = self._keep_first(attempt)
            lost = self._scheduler.lost_nodes(self._nodes) if self._scheduler else ()
            bad = suspected_nodes(attempt.faults, self._nodes, lost=lost)
            job = self._submit_again(bad)
            if job is not None:
                return self._hand_over(attempt, job, first_exit)
            attempt = self._try_here(attempt, bad)
        compare_exit = self._judge(self.folder)
        if compare_exit == ExitCode.REGRESSED and self._probe():
            compare_exit = self._judge(self.folder)
        code = night_exit(attempt, compare_exit, first_regressed=self._first_regressed)
        meaning = night_meaning(code, attempt, compare_exit, has_baseline=bool(self._compare))
        record = self._record(attempt, code, meaning, compare_exit)
        self._report()
        _say(f"{meaning} (exit {int(code)}); kept in {self.folder}")
        if command := os.environ.get(ON_VERDICT):
            self._run_on_verdict(command, record, code)
        return code

    def _open(self, name: str) -> Path:
        """Check the baseline; return a new folder, or the one of the nightly run to continue."""
        if self._compare:
            # Find a wrong baseline before the GPUs have worked for an hour.
            read_any(Path(self._compare[0]))
            _say(f"judged against {self._compare[0]}")
        if self._retry_of is None:
            nights = nights_folder(os.environ)
            folder = new_night(nights, name=name, job=self._job, day=self._started.date())
        else:
            folder = Path(self._retry_of)
            if not folder.is_dir():
                raise UsageError(f"{RETRY_OF}: {folder} is not a night's folder; unset it")
            first = read_night(folder / FIRST_ATTEMPT)
            self._first_regressed = first is not None and first.has_regressed
        if self._compare:
            _copy_or_say(Path(self._compare[0]), folder / "baseline.json")
        return folder

    def _try(self, option: str, *, without: Sequence[str] = ()) -> Attempt:
        results, log, items, fault = (self.folder / name for name in _LEFT_BY_PYTEST)
        environment = {**os.environ, FAULT_FILE: str(fault.absolute())}
        if without:
            environment[EXCLUDED_HOSTS] = ",".join(without)
        command = ["pytest", *self._measure, option, str(results), "--junitxml", str(items)]
        exit_code, found = self._stop.run(command, log, environment), None
        # The comparison will report a damaged file.
        with suppress(FileError):
            found = read_results(results) if results.exists() else None
        attempt = Attempt(
            exit_code=exit_code,
            stopped_by=self._stop.number,
            items=read_items(items),
            results=found,
            machine=read_machine_faults(fault),
        )
        for seen in attempt.faults:
            _say(f"infrastructure: {seen}")
        return attempt

    def _judge(self, folder: Path) -> int | None:
        """Compare, and save all formats; return the exit code, None if nothing was compared."""
        results = folder / _RESULTS
        if not self._compare or not results.exists() or not results.stat().st_size:
            return None
        baseline, *options = self._compare
        for name, ending in _COMPARISONS.items():
            options += ["--format", f"{name}={folder / f'comparison.{ending}'}"]
        code, said = self._command("compare", baseline, str(results), *options)
        _write_or_say(folder / "comparison.txt", said)
        return code

    def _probe(self) -> bool:
        """Run the probes that can confirm the first causes; True if there are any and they work."""
        parser = ArgumentParser(add_help=False)
        parser.add_argument("--data-root")
        root = parser.parse_known_args(self._measure)[0].data_root
        try:
            rows = json.loads((self.folder / "comparison.json").read_text())["entries"]
            has_probes = bool(read_any(Path(self._compare[0])).probes)
        except (OSError, ValueError, FileError):
            return False
        causes = [cause for row in rows for cause in row["causes"][:1]]
        names = sorted({name for cause in causes for name in cause["probes"]})
        options = ["--only", ",".join(names), *(["--data-root", root] if root else [])]
        asked = ("probe", str(self.folder / _RESULTS), *options)
        return has_probes and bool(names) and self._command(*asked)[0] in (0, 1)

    def _report(self) -> None:
        """Write the HTML report; a failure is printed but does not affect the exit code."""
        results = self.folder / _RESULTS
        if not results.exists() or not results.stat().st_size:
            return
        judged = []
        if self._compare:
            baseline, *options = self._compare
            parser = ArgumentParser(add_help=False)
            parser.add_argument("--format", action="append")
            judged = ["--baseline", baseline, *parser.parse_known_args(options)[1]]
        page = str(self.folder / "report.html")
        code, _ = self._command(
            "report", str(results), str(self.folder.parent), *judged, "--output", page
        )
        if code != ExitCode.OK:
            _say("the night has no report.html (see above)")

    def _keep_first(self, attempt: Attempt) -> int | None:
        """Set the first attempt's files aside, add evidence of the fault, and judge the results."""
        first, host = self.folder / FIRST_ATTEMPT, socket.gethostname()
        evidence = attempt.evidence(job=self._job, host=host, nodes=list(self._nodes))
        with suppress(OSError):
            first.mkdir(exist_ok=True)
            for name in _LEFT_BY_PYTEST:
                if (self.folder / name).exists():
                    (self.folder / name).replace(first / name)
        _write_or_say(first / "evidence.json", evidence)
        doctor = answer_of(["gpuscale", "doctor", "--format", "json"])
        if doctor is not None:
            _write_or_say(first / "doctor.json", doctor + "\n")
        # The second attempt may measure nothing.
        code = self._judge(first)
        self._first_regressed = code == ExitCode.REGRESSED
        return code

    def _submit_again(self, bad: Sequence[str]) -> str | None:
        """Resubmit this job for other nodes; return the new job's number, None if that failed."""
        found = self._scheduler.submit_again(os.environ, avoid=bad) if self._scheduler else None
        if self._scheduler is None or found is None:
            return None
        command, environment = found
        answer = answer_of(command, {**environment, RETRY_OF: str(self.folder.absolute())})
        problem = f"{self._scheduler.title} does not take the job once more without these nodes"
        try:
            if answer is not None:
                return self._scheduler.number_in(answer)
        except GpuscaleError as error:
            problem = str(error)
        _say(f"{problem}; trying again here")
        return None

    def _hand_over(self, attempt: Attempt, job: str, compare_exit: int | None) -> ExitCode:
        code = ExitCode.INFRASTRUCTURE
        meaning = f"infrastructure failed; submitted once more as job {job}, for other nodes"
        if self._first_regressed:
            code, meaning = ExitCode.REGRESSED, f"regressed, and {meaning}"
        self._record(attempt, code, meaning, compare_exit, retried_as=job)
        _say(f"{meaning}; kept in {self.folder / FIRST_ATTEMPT}")
        return code

    def _try_here(self, first: Attempt, bad: Sequence[str]) -> Attempt:
        """Retry in this job: on the other nodes if any remain, else resume on the same node."""
        kept, results = self.folder / FIRST_ATTEMPT / _RESULTS, self.folder / _RESULTS
        has_others = len(bad) < len(self._nodes)
        where = f"without {', '.join(bad)}" if has_others else "on the same node"
        _say(f"trying once more, {where}")
        if has_others or first.results is None:
            again = self._try("--results", without=bad if has_others else ())
        else:
            _copy_or_say(kept, results)
            # The runs of both attempts are compared together.
            self._first_regressed = False
            again = self._try("--resume")
        if not again.has_measured and first.has_measured:
            # The runs of the first attempt can still be judged.
            _copy_or_say(kept, results)
        return again

    def _record(
        self,
        attempt: Attempt,
        code: ExitCode,
        meaning: str,
        compare_exit: int | None,
        retried_as: str | None = None,
    ) -> NightRecord:
        """Record how the nightly run ended, or the first attempt if another job continues it."""
        first = self.folder / FIRST_ATTEMPT
        again = (self._retry_of is not None or first.exists()) and retried_as is None
        record = NightRecord(
            night=meaning,
            exit=int(code),
            pytest_exit=attempt.exit_code,
            compare_exit=compare_exit,
            all_measured=attempt.is_complete,
            infrastructure=tuple(str(fault) for fault in attempt.faults),
            left_out=attempt.items.left_out,
            not_collected=attempt.items.uncollected,
            attempts=2 if again else 1,
            retried_as=retried_as,
            started=self._started.isoformat(timespec="seconds"),
            finished=datetime.now().astimezone().isoformat(timespec="seconds"),
            host=socket.gethostname(),
            nodes=tuple(self._nodes),
            job=self._job,
            revision=answer_of(["git", "describe", "--always", "--dirty"]) or "unknown",
            baseline=self._compare[0] if self._compare else None,
        )
        _write_record(self.folder if retried_as is None else first, record)
        return record

    def _run_on_verdict(self, command: str, record: NightRecord, code: int) -> None:
        """Run the site's verdict command, and record how it ended; the exit code stays the same."""
        document = self.folder / "comparison.json"
        problem = run_on_verdict(command, document, code=code, meaning=record.night)
        if problem is not None:
            _say(f"{ON_VERDICT}: the command {problem}: {visible(command)}")
        _write_record(self.folder, replace(record, on_verdict=problem or "told"))


def _write_record(folder: Path, record: NightRecord) -> None:
    for name, text in record_files(record).items():
        _write_or_say(folder / name, text)


def _write_or_say(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        _say(f"{path} cannot be written ({error.strerror}); its text was:\n{text}")


def _copy_or_say(source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        _say(f"{target} cannot be written ({error.strerror})")


def _say(text: str) -> None:
    print_flushed(f"gpuscale night: {text}\n")


def print_flushed(text: str) -> None:
    """Print a text and flush standard output; do nothing if standard output is closed."""
    with suppress(OSError):
        sys.stdout.write(text)
        sys.stdout.flush()
