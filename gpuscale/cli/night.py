"""`gpuscale night`: measure, compare and keep, with one more try where a node failed."""

import argparse
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from signal import Signals

from gpuscale.cli.night_files import (
    copy_or_say,
    night_to_go_on_in,
    on_host,
    results_in,
    say,
    write_or_say,
)
from gpuscale.cli.night_judging import Judgement, judge
from gpuscale.cli.night_process import Stopping, answer_of, lost_nodes, nodes_of_the_job
from gpuscale.errors import GpuscaleError, UsageError
from gpuscale.launch.placement import EXCLUDED_HOSTS
from gpuscale.night import (
    Attempt,
    Fault,
    NightExit,
    NightFolder,
    failed_attempt_json,
    faults_of,
    new_night,
    night_exit,
    night_meaning,
    nights_folder,
    read_items,
    record_text,
    resubmission,
    suspects,
)
from gpuscale.night.record import exit_fact, has_regressed, retried_fact
from gpuscale.night.retry import RETRY_OF
from gpuscale.submission.schedulers import job_number

_USAGE = "use: NAME JOB measure PYTEST_ARGUMENT... [compare BASELINE [OPTION...]]"


def run_night(arguments: argparse.Namespace) -> int:
    """One night; the exit code is `NightExit`'s."""
    measure, compare = _split(arguments.words)
    night = _Night(name=arguments.name, job=arguments.job, measure=measure, compare=compare)
    return night.run()


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The arguments of pytest and those of `gpuscale compare`."""
    if not words or words[0] != "measure":
        raise UsageError(_USAGE)
    end = words.index("compare") if "compare" in words else len(words)
    measure, compare = words[1:end], words[end + 1 :]
    if not measure or (end < len(words) and not compare):
        raise UsageError(_USAGE)
    return measure, compare


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """An attempt, and what looks like the infrastructure's fault in it."""

    attempt: Attempt
    faults: tuple[Fault, ...]


class _Night:
    def __init__(self, *, name: str, job: str, measure: list[str], compare: list[str]) -> None:
        self._job = job
        self._measure = measure
        self._compare = compare
        self._started = datetime.now().astimezone()
        self._stopping = Stopping()
        self._nodes = nodes_of_the_job()
        self._is_retry = RETRY_OF in os.environ
        self._first_regressed = False
        if compare:
            self._show_baseline(compare[0])
        if self._is_retry:
            self._folder = night_to_go_on_in(Path(os.environ[RETRY_OF]))
            self._first_regressed = has_regressed(self._folder.first_attempt)
        else:
            day = self._started.date()
            self._folder = new_night(nights_folder(os.environ), name=name, job=job, day=day)
        if compare:
            copy_or_say(Path(compare[0]), self._folder.baseline)

    def run(self) -> int:
        """Measure, once more where the infrastructure failed, judge, and keep the record."""
        tried = self._try(["--results", str(self._folder.results)], dict(os.environ))
        if tried.faults and not self._is_retry:
            first = self._keep_first(tried)
            bad = suspects(tried.faults, self._nodes, lost=lost_nodes(self._nodes))
            job = self._submit_again(bad)
            if job is not None:
                return self._hand_over(tried, job, first)
            tried = self._try_here(tried, bad)
        judged = judge(self._folder, self._compare, self._stopping)
        attempt = tried.attempt
        code = night_exit(
            has_measured=attempt.has_measured,
            is_complete=attempt.is_complete,
            has_faults=bool(tried.faults),
            could_run=attempt.could_run,
            compare_exit=judged.exit_code,
            is_judged=judged.is_judged,
            first_regressed=self._first_regressed,
        )
        meaning = night_meaning(
            code, has_measured=attempt.has_measured, has_baseline=bool(self._compare)
        )
        if code == NightExit.REGRESSED and not judged.has_regressed:
            meaning += ", by what the first attempt measured: see attempt-1"
        if attempt.stopped_by is not None:
            meaning += f"; stopped by {Signals(attempt.stopped_by).name} (the job's time limit?)"
        self._record(self._folder, tried, code, meaning, judged.exit_code)
        say(f"{meaning} (exit {int(code)}); kept in {self._folder.path}")
        return code

    def _try(self, where: list[str], environment: dict[str, str]) -> _Tried:
        folder = self._folder
        items = ["--junitxml", str(folder.items)]
        code, end = self._stopping.run_until_asked(
            ["pytest", *self._measure, *where, *items],
            log=folder.pytest_log,
            environment=environment,
        )
        attempt = Attempt(
            exit_code=code,
            stopped_by=self._stopping.number,
            items=read_items(folder.items),
            results=results_in(folder.results),
            log_end=end,
        )
        faults = faults_of(attempt)
        for fault in faults:
            say(f"infrastructure: {fault.text}{on_host(fault)}")
        return _Tried(attempt=attempt, faults=faults)

    def _keep_first(self, tried: _Tried) -> Judgement:
        """Set aside what the first attempt left, with what tells which hardware failed.

        It is judged here: nobody knows whether another attempt will measure anything.
        """
        first = self._folder.first_attempt
        evidence = failed_attempt_json(
            tried.attempt,
            tried.faults,
            host=socket.gethostname(),
            job=self._job,
            nodes=self._nodes,
        )
        with suppress(OSError):
            first.path.mkdir(exist_ok=True)
            for path in (self._folder.results, self._folder.pytest_log, self._folder.items):
                if path.exists():
                    path.replace(first.path / path.name)
        write_or_say(first.evidence, evidence)
        doctor = answer_of(["gpuscale", "doctor", "--format", "json"])
        if doctor is not None:
            write_or_say(first.path / "doctor.json", doctor + "\n")
        judged = judge(first, self._compare, self._stopping)
        self._first_regressed = judged.has_regressed
        return judged

    def _submit_again(self, bad: tuple[str, ...]) -> str | None:
        """Submit this job once more, for other nodes; its number, None where that cannot be."""
        job = os.environ.get("SLURM_JOB_ID")
        shown = answer_of(["scontrol", "--oneliner", "show", "job", job]) if job else None
        found = resubmission(
            os.environ,
            avoid=bad,
            night=str(self._folder.path.absolute()),
            shown=shown or "",
        )
        if found is None:
            return None
        answer = answer_of(*found)
        if answer is None:
            say("Slurm does not take the job once more without these nodes; trying again here")
            return None
        try:
            return job_number("slurm", answer)
        except GpuscaleError as error:
            say(f"{error}; trying again here")
            return None

    def _hand_over(self, tried: _Tried, job: str, judged: Judgement) -> int:
        code = NightExit.REGRESSED if judged.has_regressed else NightExit.INFRASTRUCTURE
        meaning = f"infrastructure failed; submitted once more as job {job}, for other nodes"
        if judged.has_regressed:
            meaning = f"regressed, and {meaning}"
        first = self._folder.first_attempt
        self._record(first, tried, code, meaning, judged.exit_code, retried_fact(job))
        say(f"{meaning}; kept in {first.path}")
        return code

    def _try_here(self, first: _Tried, bad: tuple[str, ...]) -> _Tried:
        """Once more in this job: without the bad node where it has others, else going on."""
        environment = dict(os.environ)
        kept = self._folder.first_attempt
        if len(bad) < len(self._nodes):
            say(f"trying once more, without {', '.join(bad)}")
            environment[EXCLUDED_HOSTS] = ",".join(bad)
            again = self._try(["--results", str(self._folder.results)], environment)
        elif first.attempt.results is not None:
            say("trying once more, on the same node")
            copy_or_say(kept.results, self._folder.results)
            # Its runs are compared together with those that follow.
            self._first_regressed = False
            again = self._try(["--resume", str(self._folder.results)], environment)
        else:
            say("trying once more, on the same node")
            again = self._try(["--results", str(self._folder.results)], environment)
        if not again.attempt.has_measured and first.attempt.has_measured:
            # What had been measured before is still something to judge.
            copy_or_say(kept.results, self._folder.results)
        return again

    def _record(
        self,
        folder: NightFolder,
        tried: _Tried,
        code: NightExit,
        meaning: str,
        compare_exit: int | None,
        *further: tuple[str, object],
    ) -> None:
        again = self._is_retry or self._folder.first_attempt.path.exists()
        facts: list[tuple[str, object]] = [
            ("night", meaning),
            exit_fact(code),
            ("pytest exit", tried.attempt.exit_code),
            ("compare exit", compare_exit),
            ("all measured", "yes" if tried.attempt.is_complete else "no"),
            *(("infrastructure", f"{fault.text}{on_host(fault)}") for fault in tried.faults),
            *(("left out", reason) for reason in tried.attempt.items.left_out),
            *(("not collected", name) for name in tried.attempt.items.uncollected),
            ("attempts", "2, see attempt-1" if again and folder == self._folder else 1),
            *further,
            ("started", self._started.isoformat(timespec="seconds")),
            ("finished", datetime.now().astimezone().isoformat(timespec="seconds")),
            ("host", socket.gethostname()),
            ("nodes", " ".join(self._nodes) or None),
            ("job", self._job),
            ("revision", answer_of(["git", "describe", "--always", "--dirty"]) or "unknown"),
            ("baseline", self._compare[0] if self._compare else None),
        ]
        write_or_say(folder.record, record_text(facts))

    def _show_baseline(self, baseline: str) -> None:
        """A wrong baseline is found here, before the GPUs have worked for an hour."""
        say(f"judged against {baseline}")
        code, _ = self._stopping.run(["gpuscale", "show", baseline], log=Path(os.devnull))
        if code != 0:
            raise UsageError(
                f"{baseline} cannot be shown (see above); name another one, or repair the "
                "environment"
            )
