"""The next step that a comparison recommends after a loss, or to settle an unclear result."""

import shlex
from collections.abc import Container, Sequence

from gpuscale.records import Comparison
from gpuscale.reports.cause_words import next_step
from gpuscale.reports.comparison.rows import Row
from gpuscale.reports.phrases import counted
from gpuscale.reports.reason_words import WORDS, Words, parts_of

_ADD = "gpuscale baseline update --add"
_MORE_BEFORE = {
    "baseline": f"if all was well, add these runs: {_ADD} {{before}} {{after}}",
    "results": (
        "make more runs of the earlier side, on the machine as it was: {maker} … --resume {before}"
    ),
    "nights": "compare again after more nights",
}
"""Remedy if the baseline has too few runs or too large a spread, keyed by kind of baseline."""
_MORE_ONCE_IDLE = {
    "baseline": f"measure again once the host is idle, and add those runs: {_ADD} {{before}} FILE",
    "results": "measure both sides again once the host is idle",
}
"""Remedy that replaces `_MORE_BEFORE` if the host was busy during the current runs."""
_BUSY_BEFORE = {"busy_hosts": "both sides", "busy_host_before": "the baseline"}
"""Sides to measure again, keyed by the note that reports a busy host in the baseline's runs."""


def next_step_of(
    comparison: Comparison, rows: Sequence[Row], shared: Sequence[Row], *, is_changed: bool
) -> str:
    """Return what to do next, from a note, the first cause or a row; empty if nothing is needed.

    The rows must be ranked, the worst first; those in `shared` have the same first cause.
    """
    weight, notes = rows[0].entry.verdict.weight, {note.code for note in comparison.notes}
    # A row that further runs would not settle is worse than others with the same verdict.
    worst = min(rows, key=lambda row: (row.entry.verdict.weight, bool(row.entry.further_runs)))
    of_baseline = weight == 1 and any(words.needs_baseline for words in _words(worst))
    # If nothing was judged, no verdict is doubtful.
    is_doubted = any(row.entry.verdict.is_judged for row in rows)
    if is_doubted and (caution := _caution(comparison, notes, weight, of_baseline=of_baseline)):
        return caution
    if weight == 2:
        return ""
    configuration = worst.entry.configuration
    maker = "gpuscale run" if configuration and configuration.command else "pytest"
    step = next_step(shared[0].entry.causes[0]) if shared else ""
    if weight == 0:
        undoing = _how_to_find_change(comparison, worst, is_changed=is_changed)
        return "; or ".join(filter(None, (undoing, step)))
    if of_baseline and not step:
        return _more_before(comparison, notes, maker)
    if not step:
        remedies = (words.remedy for row in (worst, *rows) for words in _words(row))
        step = next(filter(None, remedies), "")
    if step:
        return step
    return _more_now(comparison, rows, maker)


def _more_now(comparison: Comparison, rows: Sequence[Row], maker: str) -> str:
    """Return how to add runs to the results; empty if more runs would not settle any row."""
    # If there are too few runs for a forecast, suggest as many again.
    needed = []
    for row in rows:
        more = row.entry.further_runs
        if not more and any("too_few" in part.facts for part in parts_of(row.entry.reason)):
            more = row.valid_runs
        needed += [(more, row.valid_runs + more)] if more else []
    if not needed:
        return ""
    files = comparison.after.files
    resume = files[0] if len(files) == 1 else "FILE"
    most, in_all = map(max, zip(*needed, strict=True))
    return f"make about {counted(most, 'more run')}: {maker} … --runs {in_all} --resume {resume}"


def _caution(
    comparison: Comparison, notes: Container[str], weight: int, *, of_baseline: bool
) -> str:
    """Return the gravest note's next step; empty if a cause's or a row's next step comes first."""
    found = [words for code, words in WORDS.items() if words.caution and code in notes]
    first = [words.caution for words in found if words.caution_is_first]
    if weight == 1 and not first and comparison.baseline_kind != "nights":
        # A loss stands although a busy host slowed the baseline too; an open row may not.
        sides = [side for code, side in _BUSY_BEFORE.items() if code in notes]
        first = [f"measure {side} again once the host is idle" for side in sides]
    others = [] if weight == 2 or of_baseline else [words.caution for words in found]
    return next(filter(None, (*first, *others)), "")


def _how_to_find_change(comparison: Comparison, row: Row, *, is_changed: bool) -> str:
    """Return how to find the harmful change, by `gpuscale bisect` if possible; empty if unknown."""
    sides = (comparison.before.files, comparison.after.files)
    is_of_packages = any(note.code == "packages_changed" for note in comparison.notes)
    is_of_two_files = [*map(len, sides)] == [1, 1] and comparison.baseline_kind != "nights"
    if not (is_of_packages and is_of_two_files):
        return "measure again with the likeliest of the changes undone" if is_changed else ""
    files = shlex.join(file for side in sides for file in side)
    return f"find the package: gpuscale bisect {files} --gpus {row.entry.key.gpus} …"


def _more_before(comparison: Comparison, notes: Container[str], maker: str) -> str:
    """Return how to get more baseline runs, neither from the current job nor on a busy host."""
    if "same_allocation" in notes:
        return "measure again, in a session of its own, and compare those results"
    sides = (comparison.before.files or ["FILE"], comparison.after.files or ["RESULTS"])
    before, after = (shlex.join(files) for files in sides)
    kind = comparison.baseline_kind
    if "busy_host" in notes and kind in _MORE_ONCE_IDLE:
        return _MORE_ONCE_IDLE[kind].format(before=before)
    return _MORE_BEFORE[kind].format(before=before, after=after, maker=maker)


def _words(row: Row) -> list[Words]:
    """Return the texts (`Words`) for each part of a row's reason."""
    return [WORDS[part.code] for part in parts_of(row.entry.reason)]
