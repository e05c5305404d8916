"""The processes of a command are ended in order, and none is left."""

from pathlib import Path

import pytest
from command_line import python_in

END = """
import subprocess, sys, time
from pathlib import Path
from gpuscale.base.process_ends import adopt_orphans, descendants, end_descendants

adopt_orphans()
subprocess.Popen(["bash", "-c", sys.argv[1]])
while not Path("runs").exists():
    time.sleep(0.01)
end_descendants(float(sys.argv[2]))
print(*descendants())
"""
# A rank that says which signal reached it, until another ends it.
RANK = """(
    trap ': >terminated; exit' TERM
    trap 'exit' USR1
    touch runs
    while :; do sleep 0.05; done
)&"""
CASES = {
    "a launcher that ends its ranks": ("trap 'kill -USR1 $!; wait; exit' TERM; wait", 600, False),
    "a launcher that does not react": ("trap '' TERM; while :; do sleep 0.05; done", 6, True),
    "a launcher that leaves its ranks": ("wait", 600, True),
}


@pytest.mark.parametrize(("launcher", "grace_s", "are_terminated"), [*CASES.values()], ids=CASES)
def test_ranks_get_a_signal_of_their_own_only_if_their_launcher_leaves_them(
    launcher: str, grace_s: float, are_terminated: bool, tmp_path: Path
) -> None:
    answer = python_in(tmp_path, "-c", END, f"{RANK}\n{launcher}", grace_s)
    assert (answer.returncode, answer.stdout.split()) == (0, [])
    assert (tmp_path / "terminated").exists() == are_terminated
