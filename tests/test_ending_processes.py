"""The processes of a command are ended in order, and none is left."""

import subprocess
import sys
from pathlib import Path

import pytest

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
    "a launcher that ends its own ranks": (
        "trap 'kill -USR1 $!; wait; exit 0' TERM; wait",
        600,
        False,
    ),
    "a launcher that does not react": ("trap '' TERM; while :; do sleep 0.05; done", 6, True),
    "a launcher that leaves its ranks": ("wait", 600, True),
}


@pytest.mark.parametrize(("launcher", "grace_s", "are_terminated"), [*CASES.values()], ids=CASES)
def test_ranks_get_a_signal_of_their_own_only_if_their_launcher_leaves_them(
    launcher: str, grace_s: float, are_terminated: bool, tmp_path: Path
) -> None:
    command = (sys.executable, "-c", END, f"{RANK}\n{launcher}", str(grace_s))
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == []
    assert (tmp_path / "terminated").exists() == are_terminated
