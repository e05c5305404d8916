"""How a night ends: one exit code out of what was measured and how it was judged."""

from collections.abc import Mapping
from enum import IntEnum


class NightExit(IntEnum):
    """The exit codes of a night; the first five are those of `gpuscale compare`."""

    OK = 0
    REGRESSED = 1
    FAILED = 2
    INCONCLUSIVE = 3
    NOTHING_COMPARABLE = 4
    INCOMPLETE = 5
    INFRASTRUCTURE = 6


MEANINGS: Mapping[int, str] = {
    NightExit.OK: "ok",
    NightExit.REGRESSED: "regressed",
    NightExit.FAILED: "it could not be run or judged",
    NightExit.INCONCLUSIVE: "not shown to be fine",
    NightExit.NOTHING_COMPARABLE: "nothing comparable was measured",
    NightExit.INCOMPLETE: "not everything was measured",
    NightExit.INFRASTRUCTURE: "infrastructure failed",
}
VERDICTS = (
    NightExit.OK,
    NightExit.REGRESSED,
    NightExit.INCONCLUSIVE,
    NightExit.NOTHING_COMPARABLE,
)


def night_exit(
    *,
    has_measured: bool,
    is_complete: bool,
    has_faults: bool,
    could_run: bool,
    compare_exit: int | None,
    is_judged: bool,
    first_regressed: bool = False,
) -> NightExit:
    """The exit code of a night.

    A regression wins, also beside a failed item; then a comparison that broke, then the
    infrastructure, and then what is missing: a verdict on half of the numbers is not the one that
    was asked for.

    Args:
        has_measured: Whether there is a valid run.
        is_complete: Whether all that was asked for was measured.
        has_faults: Whether the infrastructure failed, in the last attempt.
        could_run: Whether pytest understood what it was asked for, could read all cases, and did
            not break.
        compare_exit: Of `gpuscale compare`; None where it was not started.
        is_judged: Whether it printed anything: Python, too, ends with 1 when it crashes.
        first_regressed: Whether a first attempt, with runs of its own, regressed. That stands
            unless the last one judged all that was asked for.
    """
    is_broken = compare_exit is not None and (compare_exit not in VERDICTS or not is_judged)
    if first_regressed and (is_broken or not is_complete or not has_measured):
        return NightExit.REGRESSED
    if is_broken:
        return NightExit.FAILED
    if compare_exit == NightExit.REGRESSED:
        return NightExit.REGRESSED
    if has_faults:
        return NightExit.INFRASTRUCTURE
    if not has_measured and not could_run:
        return NightExit.FAILED
    if not has_measured:
        return NightExit.NOTHING_COMPARABLE
    if not is_complete:
        return NightExit.INCOMPLETE
    return NightExit.NOTHING_COMPARABLE if compare_exit is None else NightExit(compare_exit)


def night_meaning(code: NightExit, *, has_measured: bool, has_baseline: bool) -> str:
    """The exit code in words."""
    if code == NightExit.NOTHING_COMPARABLE and not has_measured:
        return "nothing was measured"
    if code == NightExit.NOTHING_COMPARABLE and not has_baseline:
        return "measured, and judged by nothing: no baseline was named"
    return MEANINGS[code]
