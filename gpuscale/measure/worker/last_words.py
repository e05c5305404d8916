"""The process that ended a command, and why, by what each of its processes printed last."""

import signal
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from gpuscale.base.foreign_texts import (
    EXCEPTION,
    LOST_PEER_LINES,
    OF_STARTER,
    TORCHRUN_SUMMARY,
    TRACEBACK,
)
from gpuscale.measure.worker.output import OF_COMMAND, Line

KEPT_LINES = 500
"""Lines of each process that are looked at."""
_SHOWN_LINES = 20
_MOST_SHOWN_LINES = 100
"""Shown of a long traceback."""
_FAULT_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE)
"""No consequence of another process's end, as SIGABRT and SIGTERM may be."""


class LastWords(NamedTuple):
    """The end of one process of a command."""

    source: str
    """`rank 1`, or the command itself."""
    exception: str | None
    """Python's last line on it; None if the process told of none."""
    exit_code: int | None
    """None if unknown."""
    lines: tuple[str, ...]


class _Traceback(NamedTuple):
    first_line: int
    arrived_s: float
    exception: str


def last_words(
    lines: Mapping[str, Collection[Line]], exit_codes: Mapping[str, int]
) -> LastWords | None:
    """Find the process that ended a command, by the last lines of each; None if nothing tells.

    Exit codes are those of processes that gpuscale started itself; for other ones torchrun's
    summary is asked. A process that only lost another one is not the cause.
    """
    codes = dict(exit_codes) or _summarised(lines.get(OF_COMMAND, ()))
    raised = {source: found for source, each in lines.items() if (found := _raised(each))}
    # Where a shell reads the output of ranks, it prints again what they printed.
    if codes or len(raised) > 1:
        raised.pop(OF_COMMAND, None)
    own = sorted(
        (source for source, each in raised.items() if not LOST_PEER_LINES.search(each.exception)),
        key=lambda source: raised[source].arrived_s,
    )
    killed = [source for source, code in codes.items() if -code in _FAULT_SIGNALS]
    first = killed if exit_codes else [*codes][-1:]
    surely = [source for source in first if source in (*own, *killed)]
    for source in chain(surely, own, killed, first, codes, raised):
        printed, found = [*lines.get(source, ())], raised.get(source)
        shown = len(printed) - _SHOWN_LINES
        if found is not None:
            shown = min(shown, max(found.first_line, len(printed) - _MOST_SHOWN_LINES))
        return LastWords(
            source=source,
            # A signal ends a process whatever it raised before.
            exception=None if found is None or source in killed else found.exception,
            exit_code=codes.get(source),
            lines=tuple(line.text for line in printed[max(0, shown) :]),
        )
    return None


def _summarised(lines: Iterable[Line]) -> dict[str, int]:
    """The exit codes in the last summary of torchrun, the rank that failed first at the end."""
    codes: dict[str, int] = {}
    for rank, code in TORCHRUN_SUMMARY.findall("\n".join(line.text for line in lines)):
        codes.pop(f"rank {rank}", None)
        codes[f"rank {rank}"] = int(code)
    return codes


def _raised(lines: Iterable[Line]) -> _Traceback | None:
    """The last traceback of a process that is not of losing others, else the last one."""
    found = [each for each in _tracebacks(lines) if not OF_STARTER.match(each.exception)]
    own = [each for each in found if not LOST_PEER_LINES.search(each.exception)]
    return next(iter((*reversed(own), *reversed(found))), None)


def _tracebacks(lines: Iterable[Line]) -> Iterator[_Traceback]:
    begin = None
    for number, line in enumerate(lines):
        if TRACEBACK.match(line.text):
            begin = number, line.arrived_s
        elif begin is not None and (found := EXCEPTION.fullmatch(line.text)):
            yield _Traceback(*begin, found["exception"])
            begin = None
