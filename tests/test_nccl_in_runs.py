"""NCCL's log in real runs: ranks write what NCCL would write, to the file that it would open.

No machine of the tests has NCCL's GPUs, so the model of a case and a script speak in its place.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from measuring import Session, run_pytest, write_case
from nccl_speaks import CASE, SAID, SPEAK

SHORT = ("--device", "cpu", "--run-seconds", "0.3", "--strategy", "ddp,command", "--gpus")


def said_in(session: Session) -> list[Mapping[str, str]]:
    """What each run's node has from the log."""
    return [node.connections for run in session.results.runs for node in run.nodes]


def test_ranks_of_gpuscale_say_how_they_are_connected(tmp_path: Path) -> None:
    session = run_pytest(tmp_path, str(write_case(tmp_path, CASE)), *SHORT, "1,2", "--runs", "1")
    assert session.exit_code == 0, session.output
    assert said_in(session) == [SAID] * 2
    assert not any(name.startswith("NCCL_") for name in session.results.environment.variables)


def test_the_log_of_an_earlier_run_is_not_taken_for_that_of_a_later_one(tmp_path: Path) -> None:
    # The trial before the first run, which makes a model too, has no such variables.
    first = "'NCCL_DEBUG' in os.environ and not os.path.exists('said')"
    once = f"if {first}:\n            speak(*LINES)\n            open('said', 'w').close()"
    path = write_case(tmp_path, CASE.replace("speak(*LINES)", once))
    assert said_in(run_pytest(tmp_path, str(path), *SHORT, "1", "--runs", "2")) == [SAID, {}]


def test_what_the_user_has_set_stays_and_is_recorded(tmp_path: Path) -> None:
    case = CASE.replace("speak(*LINES)", "assert 'NCCL_DEBUG_FILE' not in os.environ")
    asked = (str(write_case(tmp_path, case)), *SHORT, "1", "--runs", "1")
    session = run_pytest(tmp_path, *asked, environment=["NCCL_DEBUG=VERSION"])
    assert session.exit_code == 0, session.output
    assert session.results.environment.variables["NCCL_DEBUG"] == "VERSION"
    assert said_in(session) == [{}]


def test_the_log_of_a_run_that_fails_is_kept_too(tmp_path: Path) -> None:
    case = CASE.replace("return super", "raise RuntimeError('no more'); super")
    session = run_pytest(tmp_path, str(write_case(tmp_path, case)), *SHORT, "1", "--runs", "1")
    (run,) = session.results.runs
    assert run.failure is not None
    assert said_in(session) == [SAID]


def test_processes_of_a_command_say_how_they_are_connected(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        f"{SPEAK}\nimport json, time\nspeak(*LINES)\n"
        "for step in range(10**6):\n"
        "    time.sleep(0.01)\n"
        "    print('GPUSCALE', json.dumps({'step': step}), flush=True)\n"
    )
    (tmp_path / "test_train.py").write_text(
        "import pytest\nfrom gpuscale import CommandCase\n\n\n"
        "class Train(CommandCase):\n"
        f"    command = {json.dumps(f'{sys.executable} {script}')}\n"
        "    batch = 8\n\n\n"
        "@pytest.mark.gpuscale(case=Train)\ndef test_train(scaling):\n    scaling()\n"
    )
    session = run_pytest(tmp_path, "test_train.py", *SHORT, "1", "--runs", "1")
    assert session.exit_code == 0, session.output
    assert said_in(session) == [SAID]
