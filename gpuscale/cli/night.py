"""`gpuscale night`: measure, compare and keep, with one more try where a node failed."""

import argparse
import os
import shutil
import socket
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from datetime import datetime
from io import StringIO
from pathlib import Path

from gpuscale import cli
from gpuscale.clusters.schedulers import scheduler_of_job
from gpuscale.clusters.schedulers.base import answer_of
from gpuscale.errors import ExitCode, FileError, GpuscaleError, UsageError
from gpuscale.launch.mpirun import job_hosts
from gpuscale.launch.placement import EXCLUDED_HOSTS
from gpuscale.night import night
from gpuscale.night.attempt import (
    FAULT_FILE,
    Attempt,
    StopRequest,
    read_items,
    read_machine_faults,
    suspects,
)
from gpuscale.night.night import NightExit
from gpuscale.records import Results
from gpuscale.store import read_results

_USAGE = "NAME JOB measure PYTEST_ARGUMENT... [compare BASELINE [OPTION...]]"
_FORMATS = {"json": "json", "markdown": "md", "junit": "xml"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `gpuscale night` takes."""
    parser.usage = f"gpuscale night {_USAGE}"
    parser.description = (
        "One night on one machine: measure with pytest, compare with a baseline, keep "
        "everything below .gpuscale/nightly/NAME, and end with one exit code. What fails for "
        "the infrastructure is tried once more, on other nodes if there are any."
    )
    parser.epilog = (
        "Exit codes: 0 ok or improved, 1 regressed, 2 it could not be run or judged, "
        "3 not shown to be fine: inconclusive, or a row that only one side has, failed or "
        "cannot be compared, 4 nothing comparable was measured, 5 not everything was measured, "
        "6 infrastructure failed."
    )
    parser.add_argument("name", metavar="NAME", help="of the machine, such as arc4")
    parser.add_argument(
        "job", metavar="JOB", help="a word for this night, such as the job's number"
    )
    # Everything after them is pytest's or that of `gpuscale compare`.
    parser.add_argument(
        "words",
        metavar="measure PYTEST_ARGUMENT...",
        nargs=argparse.REMAINDER,
        help=argparse.SUPPRESS,
    )


def run(arguments: argparse.Namespace) -> int:
    """One night; the exit code is `NightExit`'s."""
    words = arguments.words
    end = words.index("compare") if "compare" in words else len(words)
    measure, compare = words[1:end], words[end + 1 :]
    if words[:1] != ["measure"] or not measure or (end < len(words) and not compare):
        raise UsageError(f"use: {_USAGE}")
    return _Night(name=arguments.name, job=arguments.job, measure=measure, compare=compare).run()


class _Night:
    def __init__(self, *, name: str, job: str, measure: list[str], compare: list[str]) -> None:
        self._job = job
        self._measure = measure
        self._compare = compare
        self._started = datetime.now().astimezone()
        self._stop = StopRequest()
        self._scheduler = scheduler_of_job(os.environ)
        self._nodes = self._nodes_of_the_job()
        self._is_retry = night.RETRY_OF in os.environ
        self._first_regressed = False
        if compare:
            # A wrong baseline is found here, before the GPUs have worked for an hour.
            _say(f"judged against {compare[0]}")
            if _gpuscale("show", compare[0])[0] != ExitCode.OK:
                raise UsageError(f"{compare[0]} cannot be shown (see above); name another one")
        if self._is_retry:
            self._folder = Path(os.environ[night.RETRY_OF])
            if not self._folder.is_dir():
                raise UsageError(
                    f"{night.RETRY_OF}: {self._folder} is not a night's folder; unset it"
                )
            self._first_regressed = night.has_regressed(self._folder / night.FIRST_ATTEMPT)
        else:
            nights = night.nights_folder(os.environ)
            self._folder = night.new_night(nights, name=name, job=job, day=self._started.date())
        if compare:
            _copy_or_say(Path(compare[0]), self._folder / night.BASELINE)

    def run(self) -> int:
        """Measure, once more where the infrastructure failed, judge, and keep the record."""
        attempt = self._try("--results")
        if attempt.faults and not self._is_retry:
            first_exit = self._keep_first(attempt)
            lost = self._scheduler.lost_nodes(self._nodes) if self._scheduler else ()
            bad = suspects(attempt.faults, self._nodes, lost=lost)
            job = self._submit_again(bad)
            if job is not None:
                return self._hand_over(attempt, job, first_exit)
            attempt = self._try_here(attempt, bad)
        compare_exit = self._judge(self._folder)
        code = night.night_exit(attempt, compare_exit, first_regressed=self._first_regressed)
        meaning = night.night_meaning(code, attempt, compare_exit, has_baseline=bool(self._compare))
        self._record(self._folder, attempt, code, meaning, compare_exit)
        _say(f"{meaning} (exit {int(code)}); kept in {self._folder}")
        return code

    def _nodes_of_the_job(self) -> tuple[str, ...]:
        """The nodes that the scheduler gave, by its names; empty where it does not tell."""
        nodes = self._scheduler.nodes(os.environ) if self._scheduler else None
        if nodes is None:
            with suppress(OSError):
                nodes = job_hosts(os.environ)
        return nodes or ()

    def _try(self, option: str, *, without: tuple[str, ...] = ()) -> Attempt:
        folder = self._folder
        environment = {**os.environ, FAULT_FILE: str((folder / night.MACHINE_FAULT).absolute())}
        if without:
            environment[EXCLUDED_HOSTS] = ",".join(without)
        results, items = folder / night.RESULTS, folder / night.ITEMS
        command = ["pytest", *self._measure, option, str(results), "--junitxml", str(items)]
        attempt = Attempt(
            exit_code=self._stop.run(command, folder / night.PYTEST_LOG, environment),
            stopped_by=self._stop.number,
            items=read_items(items),
            results=_results_in(results),
            machine=read_machine_faults(folder / night.MACHINE_FAULT),
        )
        for fault in attempt.faults:
            _say(f"infrastructure: {fault}")
        return attempt

    def _judge(self, folder: Path) -> int | None:
        """The comparison's exit code; None where there is nothing to compare, or to compare with.

        Its text and its other formats are kept in the folder.
        """
        results = folder / night.RESULTS
        if not self._compare or not results.exists() or not results.stat().st_size:
            return None
        formats: list[str] = []
        for name, ending in _FORMATS.items():
            formats += ["--format", f"{name}={folder / f'comparison.{ending}'}"]
        baseline, *options = self._compare
        code, said = _gpuscale("compare", baseline, str(results), *options, *formats)
        _write_or_say(folder / "comparison.txt", said)
        return code

    def _keep_first(self, attempt: Attempt) -> int | None:
        """Set aside what the first attempt left, with what tells which hardware failed.

        It is judged here: nobody knows whether another attempt will measure anything.
        """
        first = self._folder / night.FIRST_ATTEMPT
        evidence = attempt.evidence(
            job=self._job, host=socket.gethostname(), nodes=list(self._nodes)
        )
        with suppress(OSError):
            first.mkdir(exist_ok=True)
            for name in (night.RESULTS, night.PYTEST_LOG, night.ITEMS, night.MACHINE_FAULT):
                if (self._folder / name).exists():
                    (self._folder / name).replace(first / name)
        _write_or_say(first / night.EVIDENCE, evidence)
        doctor = answer_of(["gpuscale", "doctor", "--format", "json"])
        if doctor is not None:
            _write_or_say(first / "doctor.json", doctor + "\n")
        code = self._judge(first)
        self._first_regressed = code == NightExit.REGRESSED
        return code

    def _submit_again(self, bad: tuple[str, ...]) -> str | None:
        """Submit this job once more, for other nodes; its number, None where that cannot be."""
        found = self._scheduler.submit_again(os.environ, avoid=bad) if self._scheduler else None
        if self._scheduler is None or found is None:
            return None
        command, environment = found
        environment[night.RETRY_OF] = str(self._folder.absolute())
        answer = answer_of(command, environment)
        if answer is None:
            title = self._scheduler.title
            _say(f"{title} does not take the job once more without these nodes; trying again here")
            return None
        try:
            return self._scheduler.number_in(answer)
        except GpuscaleError as error:
            _say(f"{error}; trying again here")
            return None

    def _hand_over(self, attempt: Attempt, job: str, compare_exit: int | None) -> int:
        code = NightExit.REGRESSED if self._first_regressed else NightExit.INFRASTRUCTURE
        meaning = f"infrastructure failed; submitted once more as job {job}, for other nodes"
        if self._first_regressed:
            meaning = f"regressed, and {meaning}"
        first = self._folder / night.FIRST_ATTEMPT
        self._record(first, attempt, code, meaning, compare_exit, retried_as=job)
        _say(f"{meaning}; kept in {first}")
        return code

    def _try_here(self, first: Attempt, bad: tuple[str, ...]) -> Attempt:
        """Once more in this job: without the bad node where it has others, else going on."""
        kept = self._folder / night.FIRST_ATTEMPT / night.RESULTS
        has_others = len(bad) < len(self._nodes)
        where = f"without {', '.join(bad)}" if has_others else "on the same node"
        _say(f"trying once more, {where}")
        if has_others or first.results is None:
            again = self._try("--results", without=bad if has_others else ())
        else:
            _copy_or_say(kept, self._folder / night.RESULTS)
            # Its runs are compared together with those that follow.
            self._first_regressed = False
            again = self._try("--resume")
        if not again.has_measured and first.has_measured:
            # What had been measured before is still something to judge.
            _copy_or_say(kept, self._folder / night.RESULTS)
        return again

    def _record(
        self,
        folder: Path,
        attempt: Attempt,
        code: NightExit,
        meaning: str,
        compare_exit: int | None,
        *,
        retried_as: str | None = None,
    ) -> None:
        again = self._is_retry or (self._folder / night.FIRST_ATTEMPT).exists()
        facts: list[tuple[str, object]] = [
            ("pytest exit", attempt.exit_code),
            ("compare exit", compare_exit),
            ("all measured", "yes" if attempt.is_complete else "no"),
            *(("infrastructure", fault) for fault in attempt.faults),
            *(("left out", reason) for reason in attempt.items.left_out),
            *(("not collected", name) for name in attempt.items.uncollected),
            ("attempts", "2, see attempt-1" if again and folder == self._folder else 1),
            (night.RETRIED_AS, retried_as),
            ("started", self._started.isoformat(timespec="seconds")),
            ("finished", datetime.now().astimezone().isoformat(timespec="seconds")),
            ("host", socket.gethostname()),
            ("nodes", " ".join(self._nodes) or None),
            ("job", self._job),
            ("revision", answer_of(["git", "describe", "--always", "--dirty"]) or "unknown"),
            ("baseline", self._compare[0] if self._compare else None),
        ]
        _write_or_say(folder / night.RECORD, night.record_text(meaning, code, facts))


def _gpuscale(*arguments: str) -> tuple[int, str]:
    """The exit code of another command of gpuscale, in this process, and what it said."""
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            code = cli.main(arguments)
        except (SystemExit, OSError):
            # The first is argparse's, of options that it does not know.
            code = ExitCode.USAGE
    _print(said.getvalue())
    return code, said.getvalue()


def _results_in(path: Path) -> Results | None:
    """None where the file is not there or broken, which the comparison will say."""
    try:
        return read_results(path) if path.exists() else None
    except FileError:
        return None


def _write_or_say(path: Path, text: str) -> None:
    """Write a file, or print what would be in it."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        _say(f"{path} cannot be written ({error.strerror}); its text was:\n{text}")


def _copy_or_say(source: Path, target: Path) -> None:
    """Copy a file, or print why not."""
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        _say(f"{target} cannot be written ({error.strerror})")


def _say(text: str) -> None:
    """Print a line of the night's own."""
    _print(f"gpuscale night: {text}\n")


def _print(text: str) -> None:
    """Print, if anybody still listens."""
    with suppress(OSError):
        sys.stdout.write(text)
        sys.stdout.flush()
