"""Text about a bisection: each trial, the finding, and a report to paste into an issue."""

from collections.abc import Mapping, Sequence

from gpuscale.base.text import format_percent
from gpuscale.records import Estimate
from gpuscale.records.campaigns import Bisection, BisectionFinding, Reason
from gpuscale.records.environment_diff import listed
from gpuscale.reports.phrases import interval_text

_WHY: Mapping[Reason, str] = {
    "noise": "the runs vary too much to tell the environments apart; allow more with --runs 3:20",
    "trials": "the budget of trials is spent; the same command with more --trials goes on",
    "time": "the time is up; the same command with more --time goes on",
    "contradictory": "no half of the changes shows the loss again; allow more with --runs 3:20",
    "not needed": "no change shows a loss by itself; allow more with --runs 3:20",
    "cannot be tried": "an environment of the proof cannot be made or gives no number",
    "not explained": "the loss is not shown to come and go with them; allow more with --runs 3:20",
}
_MOST_NAMED = 8
_APART = ("alone in the good environment", "taken back in the bad one")
_IN_ORDER = ("against the commit before it", "the rest of the commits")


def loss_text(estimate: Estimate | None) -> str:
    """Format a relative change in speed, `−12.0 % [−13.1 %, −10.8 %]`; return `–` for None."""
    return interval_text(estimate, lambda value: format_percent(value, signed=True))


def trial_text(rows: Sequence[tuple[str, str, Estimate | None]]) -> str:
    """Describe a trial, one line per environment; each is compared with the one on the line above.

    A row holds an answer such as `slower`, the environment's name, and its relative speed.
    """
    shown = ((answer, words, loss_text(speed) if speed else "") for answer, words, speed in rows)
    return "\n".join(f"   {answer:<10} {speed:<28} {words}" for answer, words, speed in shown)


def bisection_text(
    found: Bisection,
    changes: Sequence[str],
    remedy: str,
    left: Sequence[str],
    *,
    is_ordered: bool = False,
) -> str:
    """Describe the finding, the loss with the culprits alone and without them, and the next step.

    `found` refers to `changes` by index; `remedy` is the next step for the culprits. `left` lists
    differences that were not tried. `is_ordered` is true for commits.
    """
    rest = f"what is left: {listed(left, _MOST_NAMED)}" if left else ""
    if found.finding is BisectionFinding.SAME:
        rest = rest or "what is left: driver, firmware, kernel, node"
        said = f"SAME   both run alike here and now, {loss_text(found.loss)}"
        return f"{said}\nnext   these changes are not it; {rest}"
    loss = [f"loss   {loss_text(found.loss)} in the bad environment"] if found.loss else []
    if found.finding is BisectionFinding.UNDECIDED:
        heading = "UNDECIDED"
    else:
        joint = " or " if is_ordered else " with "
        units = ([changes[at] for at in unit] for unit in found.culprits)
        named = "; ".join(listed(unit, 4, joint) for unit in units)
        heading = f"{found.finding.name}  {named}"
    why = remedy if found.reason is None else "; ".join(filter(None, (_WHY[found.reason], rest)))
    proofs = _proofs(found, _IN_ORDER if is_ordered else _APART)
    return "\n".join((*loss, heading, *proofs, f"next   {why}"))


def _proofs(found: Bisection, names: Sequence[str]) -> list[str]:
    proofs = zip(names, (found.alone, found.taken_back), strict=True)
    return [f"       {name:<31} {loss_text(seen)}" for name, seen in proofs if seen is not None]


def report_text(result: str, measured: str, trials: Sequence[str], changes: Sequence[str]) -> str:
    """Return a bisection as Markdown for an issue; `measured` names the command and machine."""
    parts = ((result,), (measured,), ("trials:", *trials), ("changes:", *changes))
    blocks = ("```text\n" + "\n".join(lines) + "\n```" for lines in parts)
    return "\n\n".join(["**gpuscale bisect**", *blocks]) + "\n"
