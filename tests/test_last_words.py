"""The process that ended a command, found by the last lines of each process."""

import pytest
from statements import known

from gpuscale.measure.worker.output import COMMAND_SOURCE, Line, last_words

NO_DATA = "ValueError: no data"
OWN = f"""\
Traceback (most recent call last):
  File "train.py", line 7, in <module>
    raise ValueError("no data")
{NO_DATA}"""
OF_TORCH = "\n".join(f"[rank1]: {line}" for line in OWN.splitlines())
CLOSED = "RuntimeError: [gloo/pair.cc:534] Connection closed"
LOST = OWN.replace(NO_DATA, CLOSED)
STARTER = OWN.replace(NO_DATA, "x.errors.ChildFailedError: ")
SUMMARY = """\
Failures:
[1]:
  rank      : {other} (local_rank: {other})
  exitcode  : {other_code} (pid: 7)
Root Cause (first observed failure):
[0]:
  rank      : {first} (local_rank: {first})
  exitcode  : {code} (pid: 8)"""


def summary(first: int, code: int, other_code: int = -15) -> str:
    return SUMMARY.format(first=first, code=code, other=1 - first, other_code=other_code)


Printed = dict[str, list[Line]]


def printed(**texts: str) -> Printed:
    """Lines of sources, in the order in which they came; `rank_1` is rank 1."""
    sources = {"command": COMMAND_SOURCE, "rank_0": "rank 0", "rank_1": "rank 1"}
    return {
        sources[name]: [Line(sources[name], line, at_s) for line in text.splitlines()]
        for at_s, (name, text) in enumerate(texts.items())
    }


def of_ranks(command: str) -> Printed:
    """Lines of two ranks, the first of which lost the second by its exception."""
    return printed(rank_0=LOST, rank_1=OF_TORCH, command=command)


@pytest.mark.parametrize(
    ("lines", "exit_code", "source", "exception", "code"),
    [
        # A script by itself, and one whose starter raises after it.
        (printed(command=OWN), 1, COMMAND_SOURCE, NO_DATA, None),
        (printed(command=f"{OWN}\n{STARTER}"), 1, COMMAND_SOURCE, NO_DATA, None),
        # torchrun, whose summary names the rank; without it the rank with a cause of its own.
        (of_ranks(f"{STARTER}\n{summary(1, 1)}"), 1, "rank 1", NO_DATA, 1),
        (of_ranks(STARTER), 1, "rank 1", NO_DATA, None),
        # Both at once, and the summary names the wrong one first.
        (of_ranks(summary(0, 1, 1)), 1, "rank 1", NO_DATA, 1),
        # Killed without a word, while the other one logged something that it survived.
        (printed(rank_0=OWN, command=summary(1, -9)), 1, "rank 1", None, -9),
        (printed(rank_0=LOST, command=summary(0, 1, -9)), 1, "rank 1", None, -9),
        (printed(rank_0=LOST, rank_1="I give up", command=summary(1, 3)), 1, "rank 1", None, 3),
        # What a rank survived, before it was killed, is not why it ended.
        (printed(rank_1=OWN, command=summary(1, -9)), 1, "rank 1", None, -9),
        # A signal ended the command, whatever it had survived before.
        (printed(command=OWN), -9, COMMAND_SOURCE, None, -9),
        # All ranks lost others: the first one of the summary.
        (printed(rank_0=LOST, rank_1=LOST, command=summary(1, 1, 1)), 1, "rank 1", CLOSED, 1),
        # A shell prints again what the ranks printed.
        (printed(rank_1=OF_TORCH, command=OF_TORCH), 1, "rank 1", NO_DATA, None),
    ],
)
def test_the_process_that_ended_a_command_is_found(
    lines: Printed, exit_code: int, source: str, exception: str | None, code: int | None
) -> None:
    found = known(last_words(lines, exit_code))
    assert (found.source, found.exception, found.exit_code) == (source, exception, code)


def test_a_long_traceback_is_shown_from_its_beginning_and_an_endless_one_cut() -> None:
    def shown(frames: int) -> tuple[str, ...]:
        head, *_, last = OWN.splitlines()
        text = "\n".join(["before", head, *(["  File"] * frames), last])
        found = known(last_words(printed(command=text), 1))
        return found.lines

    assert shown(1)[0] == "before"
    assert shown(60)[0].startswith("Traceback")
    assert len(shown(300)) == 100
