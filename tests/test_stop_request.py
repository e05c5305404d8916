"""A night that is asked to end while it runs a program, and what is kept of the program."""

import signal
import textwrap
from pathlib import Path

from command_line import python

BEGIN = """
import os, signal, sys
from pathlib import Path
from gpuscale.base.errors import UsageError
from gpuscale.campaigns.night import attempt

attempt.PASSED_ON_S = 0.1
stop, log = attempt.StopRequest(), Path(sys.argv[1])
def run(*words):
    return stop.run(words, log, {**os.environ, "SAID": "heard"})
"""


def done(script: str, log: Path) -> list[str]:
    """Run a script after BEGIN, and return the lines that it printed."""
    answer = python("-c", BEGIN + textwrap.dedent(script), log)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.splitlines()


def test_the_output_of_a_program_is_shown_and_kept(tmp_path: Path) -> None:
    script = """
        print(run("sh", "-c", "echo $SAID; echo too >&2; exit 3"), flush=True)
        print(run("sh", "-c", "kill -9 $$"), stop.number)
    """
    assert done(script, tmp_path / "log") == ["heard", "too", "3", "-9 None"]
    assert (tmp_path / "log").read_text() == "heard\ntoo\n"
    # A log that cannot be written costs nothing else.
    assert done(script, tmp_path / "absent" / "log") == ["heard", "too", "3", "-9 None"]


def test_the_output_of_a_program_is_kept_while_it_runs(tmp_path: Path) -> None:
    script = """
        look = "for n in $(seq 600); do grep -q begun $0 && exit 7; sleep 0.1; done"
        print(run("sh", "-c", f"echo begun; {look}", str(log)))
    """
    assert done(script, tmp_path / "log") == ["begun", "7"]


def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    script = """
        try:
            run("no-such-pytest", "--option")
        except UsageError as error:
            print(error)
    """
    (said,) = done(script, tmp_path / "log")
    assert said.startswith("no-such-pytest cannot be started (No such file or directory); run")


def test_a_night_asked_to_end_ends_its_program_and_knows_who_asked_first(tmp_path: Path) -> None:
    # While the program runs, and before.
    script = """
        print(run("sh", "-c", "kill -INT $PPID; exec sleep 600"), stop.number)
        stop = attempt.StopRequest()
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            os.kill(os.getpid(), number)
        print(run("sleep", "600"), stop.number)
    """
    ended = f"{-signal.SIGTERM}"
    asked_by = (signal.SIGINT, signal.SIGUSR1)
    assert done(script, tmp_path / "log") == [f"{ended} {number:d}" for number in asked_by]
