"""Advice on the next step after a comparison."""

import math
import shlex
from collections.abc import Container, Sequence

from gpuscale.base.text import whole_percent
from gpuscale.records import Comparison, Verdict
from gpuscale.records.environment_diff import listed, may_lead_to
from gpuscale.reports import cause_words, phrases
from gpuscale.reports.comparison.headline import changes_of
from gpuscale.reports.comparison.rows import Row, sharing
from gpuscale.reports.reason_words import ONCE_IDLE, WORDS, Words, parts_of

_ADD = "gpuscale baseline update --add"
_MORE_BEFORE = {
    "baseline": (
        f"if you know of no change or fault, add these runs ({_ADD} {{before}} {{after}}), "
        "and measure {again}"
    ),
    "results": (
        "measure both sides again in turn, the earlier on the machine as it was: {maker} … "
        "--runs {runs}{about}"
    ),
    "sessions": (
        "measure the earlier side in further sessions, on the machine as it was, and make a "
        "baseline of all: gpuscale baseline record"
    ),
    "nights": "compare again after more nights",
}
"""Remedy if the baseline has too few runs or too large a spread, keyed by kind of baseline;
`sessions` for results whose own runs are not the reason."""
_LONGER = "measure both sides in longer runs, which may differ less"
_LIMIT = "accept losses of up to {loss} in {rows}: ok_bound {bound} (docs/baselines.md)"
_THEN, _OR = "\nthen ", "\nor "
"""Separators of steps in a text: each step begins on a new line, with its label."""
_AS_BEFORE = "other options as before"
_FEWEST_LONGER, _MOST_LONGER = 6, 12
"""Smallest and largest advised number of longer runs."""
_LARGEST_ADVISED_LIMIT = 0.5
_FEW_MORE = 0.1
"""Largest share of the runs needed on both sides that may be lacking and is not asked for."""


def next_steps(
    comparison: Comparison, rows: Sequence[Row], *, is_injected: bool
) -> list[tuple[str, str]]:
    """Return what to do next, each step with its label (`next`, `then` or `or`); may be empty.

    The rows must be ranked, the worst first; `is_injected` is true if they have injected faults.
    """
    advice = _advice(comparison, rows, is_injected=is_injected) if rows else ""
    lines = f"next {advice}".splitlines() if advice else []
    return [(label, text) for label, _, text in (line.partition(" ") for line in lines)]


def _advice(comparison: Comparison, rows: Sequence[Row], *, is_injected: bool) -> str:
    """Return advice from a note, the first cause or a row; empty if nothing need be done."""
    weight = rows[0].entry.verdict.weight
    if weight == 0 and is_injected:
        return "measure again without --inject"
    notes = {note.code for note in comparison.notes}
    if comparison.baseline_kind == "baseline" and weight == 1:
        # Open rows would stay open the other way round.
        notes.discard("newer_baseline")
    is_busy = "busy_host" in notes
    worst = min(rows, key=_rank)
    shared = sharing(rows)
    step = cause_words.next_step(shared[0].entry.causes[0]) if shared else ""
    is_cause_known = step and shared[0].entry.causes[0].code != "within_noise"
    if (weight == 0 and is_cause_known) or (weight == 1 and _is_single(worst)):
        # A busy host hides neither this cause, nor that more runs are needed.
        notes -= {"busy_host", "busy_host_before"}
    # If nothing was judged, no verdict is doubtful.
    is_doubted = "no_valid_run" in notes or any(row.entry.verdict.is_judged for row in rows)
    if is_doubted and (caution := _caution(comparison, notes, weight)):
        return caution
    if weight == 2:
        return ""
    configuration = worst.entry.configuration
    maker = "gpuscale run" if configuration and configuration.command else "pytest"
    if weight == 0:
        # The likelier step comes first: that of the change, or that of the cause.
        steps = (_how_to_find_change(comparison, worst), step)
        is_suspected = bool(shared) and _is_change_suspected(comparison, shared)
        step = _OR.join(filter(None, steps if is_suspected else reversed(steps)))
        first = ONCE_IDLE if is_busy else "measure again" if _is_close(comparison, worst) else ""
        if step and first and not is_suspected:
            return f"{first}{_THEN}if the loss stays, {step}"
    elif not step or is_injected:
        return _for_open_rows(comparison, rows, maker, is_injected=is_injected)
    return step or _remedy(comparison, [worst], rows, maker)


def _is_close(comparison: Comparison, row: Row) -> bool:
    """True if a loss since another session may be less than half of what it seems to be."""
    if (change := row.change) is None or change.high is None:
        return False
    return comparison.baseline_kind != "nights" and change.value < min(0.0, 2 * change.high)


def _for_open_rows(
    comparison: Comparison, rows: Sequence[Row], maker: str, *, is_injected: bool
) -> str:
    """Return what to do about rows that do not pass and are not worse; `maker` makes their runs."""
    worst = min(rows, key=_rank)
    may_do = _asked(worst, "perhaps")
    wanted = [row for row in rows if _soon(row) or (may_do and _asked(row, "perhaps"))]
    if wanted and worst.entry.verdict is Verdict.INCONCLUSIVE and not _is_single(worst):
        some = _some(rows, wanted)
        rest = "" if some == "it" and any(map(_soon, wanted)) else f", which may settle {some}"
        in_all = max(_soon(row) or _asked(row, "perhaps") for row in wanted)
        more = in_all - max(row.valid_runs for row in wanted if row.valid_runs < in_all)
        return _more_now(comparison, rows, (more, in_all), maker, rest)
    # One run a night is enough once there are several nights.
    needs_nights = _is_single(worst) and comparison.baseline_kind == "nights"
    if needs_nights or any(words.needs_baseline for words in _words(worst)):
        return _more_before(comparison, worst, rows, maker, is_injected=is_injected)
    return _remedy(comparison, [worst, *rows], rows, maker)


def _some(rows: Sequence[Row], wanted: Sequence[Row]) -> str:
    """Return which open rows are `wanted`: `it` if these are all, the name of one, or some rows."""
    if len(wanted) == sum(row.entry.verdict.weight == 1 for row in rows):
        return "it"
    return f"{wanted[0].name} on {wanted[0].devices}" if len(wanted) == 1 else "some rows"


def _is_single(row: Row) -> bool:
    return any(part.code == "single_run" for part in parts_of(row.entry.reason))


def _remedy(comparison: Comparison, chosen: Sequence[Row], rows: Sequence[Row], maker: str) -> str:
    """Return the first remedy that the reasons of the chosen rows name; empty if none does."""
    remedies = (words.remedy for row in chosen for words in _words(row))
    longer = _longer(comparison, chosen[0], rows)
    return next(filter(None, remedies), "").format(maker=maker, longer=longer)


def _rank(row: Row) -> tuple[int, bool, float]:
    """Return a key that sorts rows, the worst first: of open rows, that with the largest loss."""
    is_open = row.entry.verdict is Verdict.INCONCLUSIVE
    change = row.change.value if is_open and row.change else 0.0
    return row.entry.verdict.weight, is_open, change


def _more_now(
    comparison: Comparison,
    rows: Sequence[Row],
    runs: tuple[int, int],
    maker: str,
    of_rows: str = "",
    then: int = 0,
) -> str:
    """Return how `maker` makes `runs` (more, in all) of each row, and the time with `then` more."""
    more, in_all = runs
    files = comparison.after.files
    how = (
        f"--runs {in_all} --resume {shlex.quote(files[0])}" if len(files) == 1 else f"--runs {more}"
    )
    given = "" if len(files) == 1 else ", and give that file too"
    wall_s = (more + then) * _run_of_each_s(rows)
    takes = f"; {_about(wall_s)}{' in all' if then else ''}" if wall_s > 60 else ""
    command = f"{maker} … {how} ({_AS_BEFORE}{takes}){given}"
    return f"make about {phrases.counted(more, 'more run')}{of_rows}: {command}"


def _run_of_each_s(rows: Sequence[Row]) -> float:
    """Return the seconds that one run of every row takes, start-up included."""
    return sum(row.wall_s / (row.valid_runs or 1) for row in rows)


def _soon(row: Row) -> int:
    """Return the number of runs in all that will probably settle a row, or tell how many would."""
    further = row.entry.further_runs
    return row.valid_runs + further if further else _asked(row, "in_all")


def _asked(row: Row, name: str) -> int:
    """Return the number of runs that a row's reason has under this name; 0 if it has none."""
    found = (part.facts.get(name, 0) for part in parts_of(row.entry.reason))
    return max(count for count in found if isinstance(count, int))


def _longer(comparison: Comparison, worst: Row, rows: Sequence[Row]) -> str:
    """Return advice on longer runs or, if these would hardly help, on what else might help."""
    alike = [row for row in rows if row.entry.configuration == worst.entry.configuration]
    longer = "find what disturbs these runs ('gpuscale doctor')"
    if worst.entry.device == "cpu":
        longer = "measure at another time or on a quieter machine"
    if seconds := min(row.longer_s for row in alike):
        runs = min(max(_FEWEST_LONGER, comparison.after.most_runs or 0), _MOST_LONGER)
        command = f"pytest … --run-seconds {seconds} --runs {runs}"
        note = f"{_AS_BEFORE}; {_about(len(alike) * runs * seconds)} each"
        longer = f"{_LONGER}: {command} ({note})"
    return _OR.join(filter(None, (longer, _loosen(comparison, rows))))


def _loosen(comparison: Comparison, rows: Sequence[Row]) -> str:
    """Return the limit in a baseline with which open rows would pass unchanged; empty if none."""
    entries = [row.entry for row in rows if row.entry.verdict is Verdict.INCONCLUSIVE]
    losses = [entry.minimum_detectable_loss or 1.0 for entry in entries]
    limits = [part.facts.get("ok_bound", 0) for each in entries for part in parts_of(each.reason)]
    bound = math.ceil(100 * max(losses, default=1.0)) / 100
    is_looser = max(limits, default=0) < bound <= _LARGEST_ADVISED_LIMIT
    if comparison.baseline_kind != "baseline" or not is_looser or any(map(_is_slower, rows)):
        return ""
    which = "this row" if len(entries) == 1 else "these rows"
    return _LIMIT.format(loss=whole_percent(bound), bound=f"{bound:g}", rows=which)


def _is_slower(row: Row) -> bool:
    """True if the interval of a row's change lies below zero."""
    return row.change is not None and (row.change.high or 0.0) < 0


def _about(seconds: float) -> str:
    """Format a roughly known duration: `about 12 min`, `about 3 h`."""
    minutes = math.ceil(seconds / 60)
    short = f"{minutes} min" if seconds > 100 else f"{math.ceil(seconds / 10) * 10} s"
    return f"about {short if minutes < 120 else f'{round(minutes / 60)} h'}"


def _caution(comparison: Comparison, notes: Container[str], worst_weight: int) -> str:
    """Return the gravest note's next step; empty if a cause's or a row's next step comes first."""
    found = [words for code, words in WORDS.items() if words.caution and code in notes]
    first = [words.caution for words in found if words.caution_is_first]
    is_open = worst_weight == 1 and not first and comparison.baseline_kind != "nights"
    if is_open and "busy_host_before" in notes:
        # A busy host that slowed the baseline cannot explain a loss, only an open row.
        side = "both sides" if "busy_host" in notes else "the baseline"
        first = [f"measure {side} again once the host is idle"]
    others = [] if worst_weight == 2 else [words.caution for words in found]
    return next(filter(None, (*first, *others)), "")


def _is_change_suspected(comparison: Comparison, rows: Sequence[Row]) -> bool:
    """True if a recorded change is a likely reason for the first cause, which these rows share."""
    kind, entries = rows[0].entry.causes[0].kind, [row.entry for row in rows]
    return any(note.code == "packages_changed" for note in comparison.notes) or any(
        may_lead_to(change, kind)
        for _, changes in changes_of(comparison, entries)
        for change in changes
    )


def _how_to_find_change(comparison: Comparison, row: Row) -> str:
    """Return how to find the harmful change, by `gpuscale bisect` if possible; empty if unknown."""
    sides = (comparison.before.files, comparison.after.files)
    is_of_packages = any(note.code == "packages_changed" for note in comparison.notes)
    is_of_two_files = [*map(len, sides)] == [1, 1] and comparison.baseline_kind != "nights"
    if not (is_of_packages and is_of_two_files):
        pairs = changes_of(comparison, comparison.entries)
        found = {each.name for _, of_one in pairs for each in of_one}
        which = "the change" if len(found) == 1 else "the likeliest of the changes"
        return f"measure again with {which} undone" if found else ""
    files = shlex.join(file for side in sides for file in side)
    return f"find the package: gpuscale bisect {files} --gpus {row.entry.key.gpus} …"


def _more_before(
    comparison: Comparison, worst: Row, rows: Sequence[Row], maker: str, *, is_injected: bool
) -> str:
    """Return advice on adding runs to the baseline with `maker`, such as `pytest`."""
    notes = {note.code: note.facts for note in comparison.notes}
    if "same_allocation" in notes:
        return "measure again, in a session of its own, and compare those results"
    sides = (comparison.before.files or ["FILE"], comparison.after.files or ["RESULTS"])
    before, after = map(shlex.join, sides)
    kind = comparison.baseline_kind
    if kind == "nights" and "odd_allocations" in notes:
        named = phrases.to_minutes(listed(notes["odd_allocations"]["names"]))
        return f"if {named} was no usual night: gpuscale leave-out FOLDER --because …"
    # Runs that may be slower, or of something else, would hide a loss in the baseline.
    is_changed = any(map(_is_slower, rows)) or any(changes_of(comparison, comparison.entries))
    parts = [part for row in rows for part in parts_of(row.entry.reason)]
    if kind != "nights" and any(part.code == "both_sides_differ" for part in parts):
        return _longer(comparison, worst, rows)
    in_all, made = max(_asked(row, "of_both") for row in rows), max(row.valid_runs for row in rows)
    step = _MORE_BEFORE["sessions" if kind == "results" and not in_all else kind].format(
        before=before,
        after=after,
        maker=maker,
        runs=in_all,
        about=f" ({_about(s)} each)" if (s := in_all * _run_of_each_s(rows)) else "",
        again=f"{in_all} runs a row into a new file" if in_all else "again",
    )
    lacking = in_all - (comparison.before.fewest_runs or 0)
    # These runs are added to the baseline, or compared with it again.
    more, then = (lacking - made, in_all) if kind == "baseline" else (in_all - made, lacking)
    if kind == "baseline" and (is_injected or is_changed):
        runs = f"about {phrases.counted(lacking, 'run')} a row" if lacking > 0 else "runs"
        step = f"add {runs} of the machine as it was: {_ADD} {before} FILE"
        more, then = in_all - made, lacking
    if kind != "results" and more > _FEW_MORE * in_all:
        some = _some(rows, [row for row in rows if _asked(row, "of_both")])
        first = f" first{'' if some == 'it' else f', for {some}'}"
        now = _more_now(comparison, rows, (more, made + more), maker, first, then)
        step = f"{now}{_THEN}{step}"
    return _OR.join(filter(None, (step, _loosen(comparison, rows) if in_all else "")))


def _words(row: Row) -> list[Words]:
    return [WORDS[part.code] for part in parts_of(row.entry.reason)]
