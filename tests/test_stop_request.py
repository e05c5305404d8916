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


def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    script = """
        try:
            run("no-such-pytest", "--option")
        except UsageError as error:
            print(error)
    """
    (said,) = done(script, tmp_path / "log")
    assert said.startswith("no-such-pytest cannot be started (No such file or directory); run")


def test_a_night_that_was_asked_to_end_ends_its_program_and_remembers_who_asked_first(
    tmp_path: Path,
) -> None:
    # Asked before the program runs, and while it does, by one signal and by another. Python
    # handles the lower number first if both have come.
    script = """
        if sys.argv[1].endswith("before"):
            os.kill(os.getpid(), signal.SIGUSR1)
            print(run("sleep", "600"))
        print(run("sh", "-c", "kill -INT $PPID; kill -USR2 $PPID; exec sleep 600"), stop.number)
    """
    first = [f"{-signal.SIGTERM}"]
    assert done(script, tmp_path / "before") == [*first, f"{-signal.SIGTERM} {signal.SIGUSR1:d}"]
    assert done(script, tmp_path / "while") == [f"{-signal.SIGTERM} {signal.SIGINT:d}"]
