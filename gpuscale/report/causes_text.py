"""Why a row got worse: its causes, ranked, as text."""

from collections.abc import Iterator

from gpuscale.records import Cause, EntryVerdict
from gpuscale.units import whole_percent


def entry_causes_lines(entry: EntryVerdict) -> Iterator[str]:
    """The causes of one row, numbered from the heaviest on.

    1. exposed all-reduce +14 ms (83 % of the loss): gradient synchronisation holds …
       next: run 'gpuscale doctor' on each host, …
    """
    for number, cause in enumerate(entry.causes, start=1):
        yield f"  {number}. {cause_text(cause)}"
        yield from (f"     · {fact}" for fact in cause.evidence)
        if cause.next_step:
            yield f"     next: {cause.next_step}"


def cause_text(cause: Cause) -> str:
    """One cause in a line: headline, share, statement and scope."""
    share = "" if cause.share is None else f" ({whole_percent(cause.share)} of the loss)"
    scope = f"; {cause.scope}" if cause.scope else ""
    return f"{cause.headline}{share}: {cause.statement}{scope}"
