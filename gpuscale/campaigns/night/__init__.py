"""A night: measure, once more after a fault, compare, and keep it in a folder."""

import os
import shutil
import signal
import socket
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from types import FrameType

from gpuscale.base.errors import ExitCode, FileError, GpuscaleError, UsageError
from gpuscale.base.printable import clean, visible
from gpuscale.campaigns.night.attempt import (
    FAULT_FILE,
    Attempt,
    night_exit,
    night_meaning,
    read_items,
    read_machine_faults,
    suspects,
)
from gpuscale.campaigns.night.on_verdict import ON_VERDICT, run_on_verdict
from gpuscale.measure.launch.mpirun import job_hosts
from gpuscale.measure.launch.placement import EXCLUDED_HOSTS
from gpuscale.measure.schedulers import scheduler_of_job
from gpuscale.measure.schedulers.scheduler import answer_of
from gpuscale.store import read_results
from gpuscale.store.night_record import FIRST_ATTEMPT, RECORD, facts_of

Command = Callable[..., tuple[int, str]]
"""Runs another command of gpuscale in this process: its exit code, and what it said."""
RETRY_OF = "GPUSCALE_RETRY_OF"
"""The variable that tells a job in whose night's folder it takes the place of another."""
RETRIED_AS = "retried as"
"""The fact that another job took the place of this one."""
_RESULTS = "results.jsonl"
_LEFT_BY_PYTEST = (_RESULTS, "pytest.log", "junit.xml", "fault.json")
_EXIT = "exit"
_FORMATS = {"json": "json", "markdown": "md", "junit": "xml", "openmetrics": "prom"}
_ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Sent by schedulers before they kill: Slurm SIGTERM, Grid Engine SIGUSR1 and SIGUSR2."""
_PATIENCE_S = 2.0


class Night:
    """One night on one machine, in a job or in none."""

    def __init__(
        self, job: str, measure: Sequence[str], compare: Sequence[str], command: Command
    ) -> None:
        """Takes the words for pytest and those for the comparison, which may be none."""
        self._job, self._measure, self._compare, self._command = job, measure, compare, command
        self._started = datetime.now().astimezone()
        self._stop = StopRequest()
        self._scheduler = scheduler_of_job(os.environ)
        nodes = self._scheduler.nodes(os.environ) if self._scheduler else None
        if nodes is None:
            with suppress(OSError):
                nodes = job_hosts(os.environ)
        # By the scheduler's names; empty where it does not tell.
        self._nodes = nodes or ()
        self._retry_of = os.environ.get(RETRY_OF)
        self._first_regressed = False
        self.folder = Path()
        """Where the night is kept, once it runs."""

    def run(self, name: str) -> ExitCode:
        """Measure, once more where the infrastructure failed, judge, and keep the record."""
        self.folder = self._open(name)
        attempt = self._try("--results")
        if attempt.faults and self._retry_of is None:
            first_exit = self._keep_first(attempt)
            lost = self._scheduler.lost_nodes(self._nodes) if self._scheduler else ()
            bad = suspects(attempt.faults, self._nodes, lost=lost)
            job = self._submit_again(bad)
            if job is not None:
                return self._hand_over(attempt, job, first_exit)
            attempt = self._try_here(attempt, bad)
        compare_exit = self._judge(self.folder)
        code = night_exit(attempt, compare_exit, first_regressed=self._first_regressed)
        meaning = night_meaning(code, attempt, compare_exit, has_baseline=bool(self._compare))
        self._record(attempt, code, meaning, compare_exit)
        self._report()
        _say(f"{meaning} (exit {int(code)}); kept in {self.folder}")
        if command := os.environ.get(ON_VERDICT):
            self._tell(command, code, meaning)
        return code

    def _open(self, name: str) -> Path:
        """The night's folder, new unless this job takes the place of another."""
        if self._compare:
            # A wrong baseline is found here, before the GPUs have worked for an hour.
            _say(f"judged against {self._compare[0]}")
            if self._command("show", self._compare[0])[0] != ExitCode.OK:
                problem = "cannot be shown (see above); name another one"
                raise UsageError(f"{self._compare[0]} {problem}")
        if self._retry_of is None:
            nights = nights_folder(os.environ)
            folder = new_night(nights, name=name, job=self._job, day=self._started.date())
        else:
            folder = Path(self._retry_of)
            if not folder.is_dir():
                raise UsageError(f"{RETRY_OF}: {folder} is not a night's folder; unset it")
            self._first_regressed = has_regressed(folder / FIRST_ATTEMPT)
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
        # What is broken the comparison will say.
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
        """The kept comparison's exit code; None where there is nothing to compare, or with."""
        results = folder / _RESULTS
        if not self._compare or not results.exists() or not results.stat().st_size:
            return None
        baseline, *options = self._compare
        for name, ending in _FORMATS.items():
            options += ["--format", f"{name}={folder / f'comparison.{ending}'}"]
        code, said = self._command("compare", baseline, str(results), *options)
        _write_or_say(folder / "comparison.txt", said)
        return code

    def _report(self) -> None:
        """Write the night's page; what keeps it from being is said, and spoils nothing."""
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
        """Judge what the first attempt left, beside what tells which hardware failed."""
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
        # Nobody knows whether another attempt will measure anything.
        code = self._judge(first)
        self._first_regressed = code == ExitCode.REGRESSED
        return code

    def _submit_again(self, bad: Sequence[str]) -> str | None:
        """Submit this job once more, for other nodes; its number, None where that cannot be."""
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
        """Once more in this job: without the bad node where it has others, else going on."""
        kept, results = self.folder / FIRST_ATTEMPT / _RESULTS, self.folder / _RESULTS
        has_others = len(bad) < len(self._nodes)
        where = f"without {', '.join(bad)}" if has_others else "on the same node"
        _say(f"trying once more, {where}")
        if has_others or first.results is None:
            again = self._try("--results", without=bad if has_others else ())
        else:
            _copy_or_say(kept, results)
            # Its runs are compared together with those that follow.
            self._first_regressed = False
            again = self._try("--resume")
        if not again.has_measured and first.has_measured:
            # What had been measured before is still something to judge.
            _copy_or_say(kept, results)
        return again

    def _record(
        self, attempt: Attempt, code: int, meaning: str, compared: int | None, retried_as: str = ""
    ) -> None:
        first = self.folder / FIRST_ATTEMPT
        again = (self._retry_of is not None or first.exists()) and not retried_as
        facts: list[tuple[str, object]] = [
            ("night", meaning),
            (_EXIT, int(code)),
            ("pytest exit", attempt.exit_code),
            ("compare exit", compared),
            ("all measured", "yes" if attempt.is_complete else "no"),
            *(("infrastructure", fault) for fault in attempt.faults),
            *(("left out", reason) for reason in attempt.items.left_out),
            *(("not collected", name) for name in attempt.items.uncollected),
            ("attempts", "2, see attempt-1" if again else 1),
            (RETRIED_AS, retried_as or None),
            ("started", self._started.isoformat(timespec="seconds")),
            ("finished", datetime.now().astimezone().isoformat(timespec="seconds")),
            ("host", socket.gethostname()),
            ("nodes", " ".join(self._nodes) or None),
            ("job", self._job),
            ("revision", answer_of(["git", "describe", "--always", "--dirty"]) or "unknown"),
            ("baseline", self._compare[0] if self._compare else None),
        ]
        lines = [f"{name}: {clean(str(fact))}\n" for name, fact in facts if fact is not None]
        _write_or_say((first if retried_as else self.folder) / RECORD, "".join(lines))

    def _tell(self, command: str, code: int, meaning: str) -> None:
        """Run the site's command, which finds the whole record; how it ends changes nothing."""
        problem = run_on_verdict(command, self.folder, code=code, meaning=meaning)
        if problem is not None:
            _say(f"{ON_VERDICT}: the command {problem}: {visible(command)}")
        with suppress(OSError), (self.folder / RECORD).open("a", encoding="utf-8") as record:
            record.write(f"on verdict: {clean(problem or 'told')}\n")


class StopRequest:
    """Notes the first signal that asks for the end, and passes it on to the pytest that runs."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._running: Popen[bytes] | None = None
        for number in _ASKED_TO_END:
            signal.signal(number, self._asked)

    def run(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> int:
        """The exit code of a program, negative for the signal that ended it.

        Its output is copied to a log and to standard output, also where one of them takes nothing
        more. It is ended when this process is asked to end.
        """
        try:
            process = Popen(
                command, env=environment, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, bufsize=0
            )
        except OSError as error:
            remedy = "run 'make setup', or put the environment that has it first on PATH"
            problem = f"{command[0]} cannot be started ({error.strerror})"
            raise UsageError(f"{problem}; {remedy}") from None
        self._running = process
        if self.number is not None:
            process.terminate()
        assert process.stdout is not None
        try:
            log.touch()
        except OSError:
            log = Path(os.devnull)
        with log.open("ab", buffering=0) as file:
            while chunk := process.stdout.read(65536):
                with suppress(OSError):
                    file.write(chunk)
                with suppress(OSError):
                    sys.stdout.buffer.write(chunk)
                    sys.stdout.buffer.flush()
        self._running = None
        return process.wait()

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.number is None and self._running is not None:
            # Schedulers and terminals signal all processes of a job; a second signal would
            # disturb one that is ending in order.
            later = threading.Timer(_PATIENCE_S, self._running.terminate)
            later.daemon = True
            later.start()
        self.number = self.number or number


def nights_folder(environment: Mapping[str, str]) -> Path:
    """Where all nights are."""
    return Path(environment.get("GPUSCALE_NIGHTLY_DIR") or ".gpuscale/nightly")


def new_night(folder: Path, *, name: str, job: str, day: date) -> Path:
    """Make the folder of a night, named by date and job: two jobs never write to one."""
    for what, text in (("NAME", name), ("JOB", job)):
        if not text or "/" in text or text.startswith("."):
            raise UsageError(f"{what}: '{visible(text)}' is no name of a folder; use a word for it")
    path = folder / name / f"{day.isoformat()}_{job}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
    except FileExistsError:
        problem = "is there already; every night needs a job name of its own"
        raise FileError(visible(str(path)), problem) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        problem = f"cannot be made ({reason}); set GPUSCALE_NIGHTLY_DIR to a folder to write to"
        raise FileError(visible(str(path)), problem) from None
    return path


def has_regressed(folder: Path) -> bool:
    """True where a night or an attempt has been recorded as regressed."""
    return facts_of(folder).get(_EXIT) == str(int(ExitCode.REGRESSED))


def next_job(nights: Path, job: str) -> str | None:
    """The job that was submitted in place of this one, which failed for its nodes."""
    for night in nights.glob(f"*_{job}"):
        return facts_of(night / FIRST_ATTEMPT).get(RETRIED_AS) or None
    return None


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
    """Print a line of the night's own."""
    print_on(f"gpuscale night: {text}\n")


def print_on(text: str) -> None:
    """Print, if anybody still listens."""
    with suppress(OSError):
        sys.stdout.write(text)
        sys.stdout.flush()
