"""The words of a cause: one function for each piece that reports show of it."""

from gpuscale.records import Cause, CauseKind
from gpuscale.units import whole_percent


def headline(cause: Cause) -> str:
    """A few words for a table's row: `exposed all-reduce +14 ms`."""
    return cause.headline


def statement(cause: Cause) -> str:
    """One sentence that names rank, host and GPU where one of them carries it."""
    return cause.statement


def scope(cause: Cause) -> str:
    """From which number of GPUs on, and on how many nodes; empty where nothing tells."""
    return cause.scope


def evidence(cause: Cause) -> tuple[str, ...]:
    """What was seen, one fact each."""
    return cause.evidence


def next_step(cause: Cause) -> str:
    """What to run or look at next; empty where nothing is left to find out."""
    return cause.next_step


def whole_line(cause: Cause) -> str:
    """`exposed all-reduce +14 ms (83 % of the loss): ranks wait longer; from 4 GPUs on`."""
    share = "" if cause.share is None else f" ({whole_percent(cause.share)} of the loss)"
    where = f"; {scope(cause)}" if scope(cause) else ""
    return f"{headline(cause)}{share}: {statement(cause)}{where}"


def short_cause(causes: tuple[Cause, ...]) -> str:
    """The headline of the heaviest cause; empty where none is established."""
    if not causes or causes[0].kind is CauseKind.NOT_ESTABLISHED:
        return ""
    return headline(causes[0])
