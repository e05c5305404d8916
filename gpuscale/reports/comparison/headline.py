"""The headline of a comparison: verdict, first cause, changes, both sides and the next step."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from gpuscale.base.units import format_distinct, rough_percent, whole_percent
from gpuscale.records import (
    CauseKind,
    Comparison,
    EnvironmentChange,
    Finding,
    MetricSpec,
    Origin,
    QuantityName,
    Statement,
    Verdict,
)
from gpuscale.records.environment_diff import environment_text, listed
from gpuscale.reports.cause_words import headline, next_step
from gpuscale.reports.comparison.rows import Row, likeness_of_cause, subject_of
from gpuscale.reports.phrases import (
    counted,
    counted_verdicts,
    ends_text,
    rate_word,
    verdict_word,
    worst_first,
)
from gpuscale.reports.reason_words import WORDS, Words, parts_of, short_text, statement_text

_UNCERTAIN = "too uncertain to tell whether anything was lost"
_MORE_BEFORE = {
    "baseline": "if all was well, add these runs: gpuscale baseline update --add {before} {after}",
    "results": "make more runs of the earlier side, on the machine as it was: --resume {before}",
    "nights": "compare again after more nights",
}
"""Remedy if the baseline has too few runs or too large a spread, keyed by kind of baseline."""


def headline_of(comparison: Comparison, rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    """Return the lines of the headline, each a label and a text; lines without text are omitted.

    The rows must be ranked, the worst first.
    """
    if not rows:
        return (("NOTHING COMPARED", "there is no row to judge"),)
    before, now, changed = comparison.before, comparison.after, _changed(comparison)
    name = listed(before.files) or comparison.baseline_name
    cautions = [note for note in comparison.notes if WORDS[note.code].caution is not None]
    # `WORDS` lists the most serious ones first.
    cautions.sort(key=lambda note: [*WORDS].index(note.code))
    lines = (
        _verdict_line(rows),
        ("beware", "; ".join(map(statement_text, cautions))),
        ("cause", _first_cause(rows)),
        ("changed", changed),
        ("baseline", _side(name, before, comparison.baseline_machine)),
        ("now", _side(listed(now.files), now, comparison.current_machine)),
        ("next", _next(comparison, rows, is_changed=bool(changed))),
    )
    return tuple((label, text) for label, text in lines if text)


def is_headlined(note: Statement) -> bool:
    """True for a note that is part of the headline."""
    return note.code == "environment_changed" or WORDS[note.code].caution is not None


def _verdict_line(rows: Sequence[Row]) -> tuple[str, str]:
    """Return the first line: `REGRESSED` and `3 of 4 rows: every GPU lost …; 1 ok`."""
    verdicts, of_all = [row.entry.verdict for row in rows], f"of {counted(len(rows), 'row')}"
    verdict = worst_first(verdicts)[0]
    if verdict.is_pass:
        word, what = _passes(rows)
        return word, f"{len(rows)} {of_all}: {what}"
    chosen = [row for row in rows if row.entry.verdict is verdict]
    others = [each for each in verdicts if each is not verdict]
    what = "; ".join(_losses(chosen, rows)) if verdict.is_loss else _doubt(verdict, chosen)
    parts = [f"{len(chosen)} {of_all}{what and f': {what}'}", counted_verdicts(others)]
    return verdict_word(verdict), "; ".join(filter(None, parts))


def _losses(chosen: Sequence[Row], rows: Sequence[Row]) -> Iterator[str]:
    """Describe the loss for each finding among the chosen rows, then say what has not changed."""
    groups: dict[tuple[object, str], list[Row]] = {}
    for row in chosen:
        of_speedup = row.entry.changed_quantity is QuantityName.EFFICIENCY
        word = rate_word(row.entry.configuration)
        groups.setdefault((row.entry.finding or of_speedup, word), []).append(row)
    for group in groups.values():
        count = f" ({counted(len(group), 'row')})" if len(groups) > 1 else ""
        yield f"{_loss(group)}{count}"
    scaled = [row.entry.verdict for row in rows if row.entry.key.gpus > 1]
    findings = {found for found, _ in groups}
    if findings == {Finding.SINGLE_GPU_SLOWDOWN}:
        if scaled and all(verdict.is_loss or verdict.is_pass for verdict in scaled):
            yield "scaling is unchanged"
    elif findings == {Finding.SCALING_LOSS}:
        alone = [row for row in rows if row.entry.key.gpus == 1]
        if alone and all(row.entry.verdict is Verdict.OK for row in alone):
            yield "on 1 GPU training is as fast as before"


def _loss(rows: Sequence[Row]) -> str:
    """Describe a loss shared by rows: `training lost 9 % to 10 % of its samples/s [7 %, 13 %]`."""
    entry = rows[0].entry
    changes = [row.change for row in rows if row.change is not None]
    bounds = [
        (change.low, change.high)
        for change in changes
        if change.low is not None and change.high is not None
    ]
    ends = sorted(abs(end) for bound in bounds for end in bound)
    by = _span([abs(change.value) for change in changes])
    # An interval around zero cannot be given without signs.
    one_sided = all((low > 0) == (high > 0) for low, high in bounds)
    within = ""
    if ends and one_sided:
        within = f" [{', '.join(format_distinct(rough_percent, ends[0], ends[-1]))}]"
    since = min((row.entry.since for row in rows if row.entry.since), default=None)
    from_then = "" if since is None else f", from {since} on"
    if entry.verdict is Verdict.INCONSISTENT:
        name = "E" if entry.changed_quantity is QuantityName.EFFICIENCY else "the throughput"
        return f"{name} is {by}{within} below the reference figures"
    if isinstance(entry.finding, MetricSpec):
        moved = "rose" if changes and changes[0].value > 0 else "fell"
        of_step = " of the step" if entry.finding.in_points else ""
        return f"{entry.finding.words} {moved} by {by}{of_step}{within}{from_then}"
    if entry.finding is Finding.SCALING_LOSS:
        return f"scaling got worse, E fell by {by}{within}{from_then}"
    if rate_word(entry.configuration) == "performance":
        return f"performance fell by {by}{within}{from_then}"
    if entry.finding is Finding.SINGLE_GPU_SLOWDOWN:
        alone = all(row.entry.key.gpus == 1 for row in rows)
        subject = "training on 1 GPU" if alone else "every GPU"
    else:
        subject = "training"
    return f"{subject} lost {by} of its samples/s{within}{from_then}"


def _doubt(verdict: Verdict, rows: Sequence[Row]) -> str:
    """Say why rows do not pass: the reason that all share, or short reasons with counts."""
    reasons = dict.fromkeys(row.reason for row in rows)
    if len(reasons) == 1 and verdict is not Verdict.INCONCLUSIVE:
        return next(iter(reasons))
    usual = _UNCERTAIN if verdict is Verdict.INCONCLUSIVE else ""
    counts = Counter(short_text(row.entry) or usual for row in rows)
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{text} ({counted(count, 'row')})" for text, count in counts.items() if text)


def _passes(rows: Sequence[Row]) -> tuple[str, str]:
    """Return the first line if all rows pass, with any gains and the loss that can be ruled out."""
    verdicts = {row.entry.verdict for row in rows}
    gains: dict[str, list[float]] = {}
    for row in rows:
        if row.entry.verdict is Verdict.IMPROVED and row.change is not None:
            of_speedup = row.entry.changed_quantity is QuantityName.EFFICIENCY
            name = "E" if of_speedup else rate_word(row.entry.configuration)
            gains.setdefault(name, []).append(row.change.value)
    if verdicts == {Verdict.IMPROVED} and len(gains) == 1:
        ((name, changes),) = gains.items()
        return Verdict.IMPROVED.value, _gain(name, changes, "rose")
    parts = [
        f"{counted(len(changes), 'row')} with {_gain(name, changes, 'up')}"
        for name, changes in gains.items()
    ]
    if verdicts == {Verdict.IMPROVED}:
        return Verdict.IMPROVED.value, "; ".join(parts)
    if Verdict.CONSISTENT in verdicts:
        parts.append("no worse than the reference figures, within the tolerance")
    if Verdict.OK in verdicts:
        passed = [row for row in rows if row.entry.verdict is Verdict.OK]
        parts_of_rows = (parts_of(row.entry.reason) for row in passed)
        bounded = [part for each in parts_of_rows for part in each if "bound" in part.facts]
        worst = max(bounded, key=lambda reason: reason.facts["bound"], default=None)
        if worst and len(bounded) == len(passed) and worst.code != "no_loss":
            gain = max(row.change.value if row.change else 0.0 for row in passed)
            # The loss is ruled out by a gain above the bound, not by runs that agree.
            is_by_gain = gain > worst.facts["bound"]
            why = f" (runs were up to {rough_percent(gain)} faster)" if is_by_gain else ""
            parts.append(f"{statement_text(worst)}{why}")
        else:
            parts.append("no loss was found")
    word = Verdict.OK if Verdict.OK in verdicts else Verdict.CONSISTENT
    return word.value, "; ".join(parts)


def _gain(name: str, changes: Sequence[float], verb: str) -> str:
    """Describe gains: `E rose by 2 %`, `9.8 % to 10 % more samples/s`."""
    by = _span(changes)
    return f"{by} more samples/s" if name == "throughput" else f"{name} {verb} by {by}"


def _first_cause(rows: Sequence[Row]) -> str:
    """Name the established cause that most rows share, `computing +10 ms; all 3 rows`, if any."""
    shared = _sharing(rows)
    if not shared or not _is_established(shared[0]):
        return ""
    causes = [row.entry.causes[0] for row in shared]
    shares = sorted(c.share for c in causes if c.share is not None and c.lost_s is not None)
    of_loss = f" ({ends_text([*map(whole_percent, shares)])} of the loss)" if shares else ""
    return f"{headline(*causes)}{of_loss}; {subject_of(shared, rows)}"


def _sharing(rows: Sequence[Row]) -> list[Row]:
    """Return those deciding rows that share the most frequent first cause.

    Established causes take precedence; ties go to the cause that cost the most time.
    """
    heaviest = rows[0].entry.verdict.weight
    found = [r for r in rows if r.entry.verdict.weight == heaviest and r.entry.causes]
    groups: dict[object, list[Row]] = {}
    for row in found:
        groups.setdefault(likeness_of_cause(row.entry.causes[0]), []).append(row)

    def weight(group: Sequence[Row]) -> tuple[bool, int, float]:
        lost_s = max(row.entry.causes[0].lost_s or 0.0 for row in group)
        return _is_established(group[0]), len(group), lost_s

    return max(groups.values(), key=weight, default=[])


def _is_established(row: Row) -> bool:
    return row.entry.causes[0].kind != CauseKind.NOT_ESTABLISHED


def _next(comparison: Comparison, rows: Sequence[Row], *, is_changed: bool) -> str:
    """Say what to do next: a note's caution, the first cause's next step or a row's remedy."""
    weight, notes = rows[0].entry.verdict.weight, {note.code for note in comparison.notes}
    # A row that further runs would not settle is worse than others with the same verdict.
    worst = min(rows, key=lambda row: (row.entry.verdict.weight, bool(row.entry.further_runs)))
    of_baseline = weight == 1 and any(words.needs_baseline for words in _words(worst))
    cautions = [words.caution for code, words in WORDS.items() if words.caution and code in notes]
    # If nothing was judged, no verdict is doubtful.
    doubted = any(row.entry.verdict.is_judged for row in rows) and not of_baseline
    if cautions and doubted and (weight < 2 or "unlikely_change" in notes):
        return cautions[0]
    if weight == 2:
        return ""
    shared = _sharing(rows)
    step = next_step(shared[0].entry.causes[0]) if shared else ""
    if weight == 0:
        undoing = _how_to_find_change(comparison, worst, is_changed=is_changed)
        return "; or ".join(filter(None, (undoing, step)))
    if of_baseline and not step:
        return _more_before(comparison, is_same="same_allocation" in notes)
    if not step:
        remedies = (words.remedy for row in (worst, *rows) for words in _words(row))
        step = next(filter(None, remedies), "")
    if step:
        return step
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
    return f"make about {counted(most, 'more run')}: pytest … --runs {in_all} --resume {resume}"


def _how_to_find_change(comparison: Comparison, row: Row, *, is_changed: bool) -> str:
    """Say how to find the harmful change, by `gpuscale bisect` if possible; empty if unknown."""
    sides = (comparison.before.files, comparison.after.files)
    is_of_packages = any(note.code == "packages_changed" for note in comparison.notes)
    is_of_two_files = [*map(len, sides)] == [1, 1] and comparison.baseline_kind != "nights"
    if not (is_of_packages and is_of_two_files):
        return "measure again with the likeliest of the changes undone" if is_changed else ""
    files = shlex.join(file for side in sides for file in side)
    return f"find the package: gpuscale bisect {files} --gpus {row.entry.key.gpus} …"


def _more_before(comparison: Comparison, *, is_same: bool) -> str:
    """Say how to get more baseline runs; runs of the same session (`is_same`) cannot be added."""
    if is_same:
        return "measure again, in a session of its own, and compare those results"
    sides = (comparison.before.files or ["FILE"], comparison.after.files or ["RESULTS"])
    before, after = (shlex.join(files) for files in sides)
    return _MORE_BEFORE[comparison.baseline_kind].format(before=before, after=after)


def _words(row: Row) -> list[Words]:
    """Return the words for each part of a row's reason."""
    return [WORDS[part.code] for part in parts_of(row.entry.reason)]


def _changed(comparison: Comparison) -> str:
    """List changes of the environment between the sides, and on the nights when losses began."""
    found = [
        _listed(note.facts["changes"])
        for note in comparison.notes
        if note.code == "environment_changed"
    ]
    for entry in comparison.entries:
        if changes := entry.reason.facts.get("changed"):
            found.append(f"on {entry.since}: {_listed(changes)}")
    return "; ".join(dict.fromkeys(found))


def _listed(changes: Iterable[EnvironmentChange]) -> str:
    return ", ".join(map(environment_text, changes))


def _side(name: str, origin: Origin, machine: str) -> str:
    """Describe a side of the comparison: `well.json: node017, 2026-11-20 02:10, 6 runs a row`."""
    runs = [str(count) for count in (origin.fewest_runs, origin.most_runs) if count]
    facts = [
        listed(origin.hosts),
        _dates(origin),
        f"job{'s' if len(origin.jobs) > 1 else ''} {listed(origin.jobs)}" if origin.jobs else "",
        f"{ends_text(runs)} run{'' if origin.most_runs == 1 else 's'} a row" if runs else "",
    ]
    measured = ", ".join(filter(None, facts))
    return "; ".join(filter(None, [": ".join(filter(None, [name, measured])), machine]))


def _dates(origin: Origin) -> str:
    if origin.began_at is None or origin.last_at is None:
        return ""
    began, last = map(datetime.fromisoformat, (origin.began_at, origin.last_at))
    if began.date() == last.date():
        return f"{began:%Y-%m-%d} {ends_text([f'{began:%H:%M}', f'{last:%H:%M}'])}"
    return f"{began:%Y-%m-%d} to {last:%Y-%m-%d}"


def _span(fractions: Sequence[float]) -> str:
    """Return the range of the fractions: `9.8 % to 10 %`."""
    return ends_text([*map(rough_percent, (min(fractions), max(fractions)))])
