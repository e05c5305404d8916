"""The validity of a baseline: until the day that its user said, and on its own machine."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta

from gpuscale.errors import UsageError
from gpuscale.records import Baseline, Comparison, Environment, NoteCode, Results, Statement

_PERIOD = re.compile(r"(\d{1,6})([dw])")
_DAYS = {"d": 1, "w": 7}


def with_validity(
    comparison: Comparison, baseline: Baseline, results: Sequence[Results], *, today: date
) -> Comparison:
    """The comparison with a note where its baseline does not quite hold; verdicts stay."""
    environments = [result.environment for result in results]
    notes = (expiry_note(baseline, today), foreign_note(baseline, environments))
    return replace(comparison, notes=(*comparison.notes, *(note for note in notes if note)))


def expiry_note(baseline: Baseline, today: date) -> Statement | None:
    """The note on a baseline that has expired; None of one that has not."""
    if baseline.expires_on is None:
        return None
    days = (today - date.fromisoformat(baseline.expires_on)).days
    if days <= 0:
        return None
    code = NoteCode.EXPIRED_YESTERDAY if days == 1 else NoteCode.EXPIRED
    return Statement.of(code, on=baseline.expires_on, days=days)


def foreign_note(baseline: Baseline, environments: Sequence[Environment]) -> Statement | None:
    """The note on results of another machine than the baseline's, with the same GPUs.

    Results on other GPUs are not compared at all; a host of another kind still feeds the same
    GPUs differently. None where nothing speaks against one machine.
    """
    hardware, found = baseline.hardware, []
    # Ranks on the CPU are compared on the same CPU only; that is not for a note.
    on_gpus = [environment for environment in environments if environment.device != "cpu"]
    others = on_gpus if hardware.device != "cpu" else []
    for model in dict.fromkeys(environment.cpu_model for environment in others):
        then = hardware.cpu_model
        if then is not None and model is not None and not _may_be_same(then, model):
            found.append(Statement.of(NoteCode.HOST_HAS_OTHER_CPU, before=then, now=model))
    for here in dict.fromkeys(len(environment.gpus) for environment in others):
        per_node = hardware.gpus_per_node
        # A job may see fewer GPUs than its node has, never more.
        if per_node is not None and here > per_node:
            found.append(Statement.of(NoteCode.HOST_HAS_MORE_GPUS, before=per_node, now=here))
    return Statement.of(NoteCode.OTHER_HOST, differences=found) if found else None


def _may_be_same(one: str, other: str) -> bool:
    """True where one name of a CPU says less than the other: `POWER9`, `POWER9, altivec`."""
    words = [frozenset(re.findall(r"[a-z0-9]+", name.casefold())) for name in (one, other)]
    return words[0] <= words[1] or words[1] <= words[0]


def last_valid_day(on: str | None, after: str | None, *, measured_at: str) -> str | None:
    """The expiry that was asked for, as `2027-05-01`; None where none was.

    Args:
        on: A date.
        after: A period such as `180d` or `26w`, counted from `measured_at`.
        measured_at: When the latest of the results were measured: ISO 8601 with offset.

    Raises:
        UsageError: neither a date nor a period, or both, or a day that is past any calendar.
    """
    if on is not None and after is not None:
        raise UsageError("--expires and --expires-after say the same thing; give one of them")
    if on is not None:
        return _day(on)
    if after is None:
        return None
    period = _PERIOD.fullmatch(after)
    if period is None:
        raise UsageError(f"--expires-after: '{after}' is not a period such as 180d or 26w")
    try:
        days = timedelta(days=int(period[1]) * _DAYS[period[2]])
        return (datetime.fromisoformat(measured_at).date() + days).isoformat()
    except OverflowError:
        raise UsageError(f"--expires-after: {after} ends after the year 9999") from None


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise UsageError(f"--expires: '{text}' is not a date such as 2027-05-01") from None
