"""Advice on the next step after a comparison."""

import math
import re
import shlex
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuscale.analysis.moderation import MINIMUM_ALLOCATIONS
from gpuscale.base.text import joined, without_options
from gpuscale.judge.sides import Side
from gpuscale.records import Comparison, Verdict
from gpuscale.records.environment_diff import may_lead_to
from gpuscale.reports import cause_words, phrases
from gpuscale.reports.comparison.headline import changes_of, most_lost
from gpuscale.reports.comparison.rows import Row, sharing
from gpuscale.reports.reason_words import ONCE_IDLE, QUIETER, WORDS, Words, parts_of
from gpuscale.store.results import RESULTS

_Command = tuple[str, str]
"""Text of a step, and the command that does it; empty if there is none."""
ADD, _COMPARE = "gpuscale baseline update --add", "gpuscale compare"
_PROGRAMS = ("pytest", "gpuscale run")
_BOTH_IDLE = f"{ONCE_IDLE}, and the baseline too"
_FEWEST_AGAIN, _MOST_AGAIN = 6, 40
"""Bounds of an advised number of runs in another session."""


class _Step(NamedTuple):
    label: str
    text: str
    command: str = ""


def next_steps(
    comparison: Comparison, rows: Sequence[Row], measured: Side
) -> Iterator[tuple[str, str]]:
    """Yield (label, text) pairs: advice labelled `next`, `then` or `or`, commands labelled `run`.

    The rows must be ranked, the worst first; `measured` is the side with the current runs.
    """
    steps = _Adviser(comparison, rows, measured).steps() if rows else []
    for step in _with_comparison(steps, comparison):
        yield step.label, step.text
        if step.command:
            yield "run", step.command


def measuring(
    started_as: str | None, options: str, dropped: Sequence[str] = (), *, otherwise: str = "pytest"
) -> str:
    """Return the command `started_as` with `options` added and those in `dropped` removed.

    If `started_as` is None, return `otherwise … options`, or an empty text if `options` is empty.
    """
    taken = ("--results", "--resume", "--junitxml", *dropped, *shlex.split(options))
    words = without_options(shlex.split(started_as or ""), taken)
    at = words.index("--") if "--" in words else len(words)
    program = joined(words[:at]) or (options and f"{otherwise} …")
    return " ".join(filter(None, (program, options, joined(words[at:]))))


def further(file: str, others: Sequence[str] = ()) -> tuple[str, str]:
    """Return `--results` for a session to add to `file`, and a pattern that matches no `others`."""
    stem = f"{shlex.quote(Path(_outside_night(file)).stem)}-more"
    stem += "-again" if any(Path(other).match(f"{stem}-*.jsonl") for other in others) else ""
    return f"--results {stem}-$(date +%m%d-%H%M%S).jsonl", f"{stem}-*.jsonl"


def _with_comparison(steps: list[_Step], comparison: Comparison) -> list[_Step]:
    """Return the steps; add `compare again` if the last measurement can be compared but is not."""
    before, after = (shlex.join(side.files) for side in (comparison.before, comparison.after))
    at = max((n for n, s in enumerate(steps) if s.command.startswith(_PROGRAMS)), default=-1)
    command, of_nights = steps[at].command if steps else "", comparison.baseline_kind == "nights"
    is_judged = "--baseline" in command or any(s.command.startswith(_COMPARE) for s in steps)
    # A new file is none of a history's nights.
    if at < 0 or not before or is_judged or (of_nights and "--resume" not in command):
        return steps
    words = [_COMPARE, *(["--history"] if of_nights else []), before]
    words.append(after if "--resume" in command else _new_file(comparison))
    while at + 1 < len(steps) and steps[at + 1].command.startswith(ADD):
        at += 1
    return [*steps[: at + 1], _Step("then", "compare again", " ".join(words)), *steps[at + 1 :]]


def _new_file(comparison: Comparison) -> str:
    """Return a name, quoted for the shell, for a further file of the current results."""
    last = _outside_night((comparison.after.files or ("results",))[-1])
    stem, number = re.sub("-[2-8]$", "", last.removesuffix(".jsonl")), 2
    known = (*comparison.before.files, *comparison.after.files)
    while (name := f"{stem}-{number}.jsonl") in known or Path(name).exists():
        number += 1
    return shlex.quote(name)


def _outside_night(file: str) -> str:
    # A further file in the folder of a night would be a night of its own.
    return Path(file).absolute().parent.name if Path(file).name == RESULTS else file


def _either(*ways: str | _Command) -> list[_Step]:
    """Return alternative ways as steps, the first labelled `next`, others `or`; skip empty ones."""
    given = [(way, "") if isinstance(way, str) else way for way in ways if way]
    return [_Step("or" if number else "next", *way) for number, way in enumerate(given)]


class _Adviser(msgspec.Struct, frozen=True):
    """Chooses the next steps after a comparison; `rows` must be ranked, the worst first."""

    comparison: Comparison
    rows: Sequence[Row]
    measured: Side

    def steps(self) -> list[_Step]:
        """Return the steps suggested by notes, first cause and rows; empty if none is suggested."""
        comparison, worst = self.comparison, self.rows[0]
        weight = self.rows[0].entry.verdict.weight
        shared = sharing(self.rows)
        step = cause_words.next_step(shared[0].entry.causes[0]) if shared else ""
        if weight == 0 and self.measured.injections:
            again = self._measure("measure again without --inject", dropped=("--inject",))
            return _either(again, step and f"had the fault not been injected: {step}")
        notes = {note.code for note in comparison.notes}
        if comparison.baseline_kind == "baseline" and weight == 1:
            # Open rows would stay open the other way round.
            notes.discard("newer_baseline")
        is_busy = "busy_host" in notes
        is_cause_known = step and shared[0].entry.causes[0].code != "within_noise"
        if (weight == 0 and is_cause_known) or (weight == 1 and _is_single(worst)):
            # A busy host hides neither this cause, nor that more runs are needed.
            notes -= {"busy_host", "busy_host_before"}
        # If nothing was judged, no verdict is doubtful.
        is_doubted = "no_valid_run" in notes or any(r.entry.verdict.is_judged for r in self.rows)
        if is_doubted and (caution := _caution(comparison, notes, weight)):
            return self._cautious(caution)
        if weight == 2:
            return []
        if weight == 1:
            return self._for_open_rows(step)
        # The likelier step comes first: that of the change, or that of the cause.
        steps = (self._how_to_find_change(), step)
        is_suspected = bool(shared) and _is_change_suspected(comparison, shared)
        found = _either(*(steps if is_suspected else reversed(steps)))
        first = ONCE_IDLE if is_busy else "measure again" if self._is_uncertain(worst) else ""
        if found and first and not is_suspected:
            text = f"if it is REGRESSED again, {found[0].text}"
            likeliest = found[0]._replace(label="then", text=text)
            return [*_either(self._measure(first)), likeliest, *found[1:]]
        return found or self._remedy([worst])

    def _cautious(self, caution: str) -> list[_Step]:
        """Return the advice of a note as steps."""
        if caution == WORDS["newer_baseline"].caution:
            files = (*self.comparison.after.files, *self.comparison.before.files)
            return _either((caution, f"{_COMPARE} {shlex.join(files)}"))
        is_to_measure = caution in (ONCE_IDLE, _BOTH_IDLE)
        return _either(self._measure(caution) if is_to_measure else caution)

    def _is_uncertain(self, row: Row) -> bool:
        """True if a slowdown may be under half its estimate; always False for nightly baselines."""
        if (change := row.change) is None or change.high is None:
            return False
        return self.comparison.baseline_kind != "nights" and change.value < min(0, 2 * change.high)

    def _for_open_rows(self, step: str) -> list[_Step]:
        """Return the next steps for undecided rows (neither loss nor pass); `step` is a cause's."""
        steps = self._to_settle()
        if step and not self.measured.injections:
            return [*_either(step), *(steps and [steps[0]._replace(label="or"), *steps[1:]])]
        most = most_lost([r for r in self.rows if r.entry.verdict is Verdict.INCONCLUSIVE])
        if most and steps and not any(row.causes for row in self.rows):
            steps.append(_Step("or", f"leave it at that: {most}"))
        return steps

    def _to_settle(self) -> list[_Step]:
        """Return the steps that may settle undecided rows."""
        comparison, rows, worst = self.comparison, self.rows, self.rows[0]
        if any(note.code == "same_allocation" for note in comparison.notes):
            return _either(self._measure("measure again into a new file, and compare that"))
        wanted = [row for row in rows if _soon(row)]
        # What may be a loss comes first.
        is_slower = worst.change is not None and (worst.change.high or 0.0) < 0
        wanted = [worst] if worst in wanted and is_slower else wanted
        if wanted and worst.entry.verdict is Verdict.INCONCLUSIVE and not _is_single(worst):
            is_all = len(wanted) == sum(row.entry.verdict.weight == 1 for row in rows)
            named = f"{wanted[0].name} on {wanted[0].devices}" if len(wanted) == 1 else "some rows"
            rest = "" if is_all else f", which may settle only {named}"
            in_all = max(map(_soon, wanted))
            more = in_all - max(row.valid_runs for row in wanted if row.valid_runs < in_all)
            steps = _either(self._more_now(more, in_all, rest))
            return [*steps, *([self._compare_all()] if len(comparison.after.files) > 1 else [])]
        kind, codes = comparison.baseline_kind, {part.code for part in parts_of(worst.entry.reason)}
        if "nights_differ" in codes and kind != "nights":
            return self._another_session()
        if "once_idle" in codes:
            return _either(self._measure(ONCE_IDLE))
        # One run a night is enough once there are several nights.
        if (kind == "nights" and _is_single(worst)) or any(w.needs_baseline for w in _words(worst)):
            return self._more_before()
        return self._remedy([worst, *rows])

    def _remedy(self, chosen: Sequence[Row]) -> list[_Step]:
        """Return the first remedy that these rows' reasons suggest; empty if they suggest none."""
        remedy = next((w.remedy for row in chosen for w in _words(row) if w.remedy), "")
        return self._quieter() if remedy == QUIETER else _either(remedy.format(maker=self._program))

    @property
    def _program(self) -> str:
        configuration = self.rows[0].entry.configuration
        return "gpuscale run" if configuration and configuration.command else "pytest"

    def _measure(
        self, text: str, options: str = "", note: str = "", dropped: Sequence[str] = ()
    ) -> _Command:
        """Return `text (note)` and the command to measure with `options` and without `dropped`."""
        is_known = options or self.measured.started_as
        if is_known and "--results" not in options and "--resume" not in options:
            options = f"{options} --results {_new_file(self.comparison)}".strip()
        line = measuring(self.measured.started_as, options, dropped, otherwise=self._program)
        notes = ["other options as before"] if line and not self.measured.started_as else []
        notes += ["in a job"] if line and self.comparison.after.jobs else []
        notes += [note] if note else []
        return text + (f" ({'; '.join(notes)})" if notes else ""), line

    def _more_now(self, more: int, in_all: int, of_rows: str) -> _Command:
        """Advise `more` runs a row (total: `in_all`); `of_rows` is a remark."""
        files = self.comparison.after.files
        options = f"--runs {more}"
        if len(files) == 1:
            options = f"--runs {in_all} --resume {shlex.quote(files[0])}"
        wall_s = more * self._run_of_each_s
        takes = about(wall_s) if wall_s > 60 else ""
        runs = phrases.counted(more, "more run")
        return self._measure(f"make about {runs}{of_rows}", options, takes)

    @property
    def _run_of_each_s(self) -> float:
        """Total seconds that one run of every row takes, including start-up."""
        return sum(row.wall_s / (row.valid_runs or 1) for row in self.rows)

    def _quieter(self) -> list[_Step]:
        """Return advice for runs that differ too much."""
        # On CPU ranks, another load of the host may have disturbed all runs of the session.
        if self.rows[0].entry.device == "cpu" and self.comparison.baseline_kind != "nights":
            return self._another_session(min(self.comparison.before.most_runs or 0, _MOST_AGAIN))
        return _either("find what disturbs these runs ('gpuscale doctor')")

    def _another_session(self, fewest: int = 0) -> list[_Step]:
        """Return steps for further sessions with as many runs as now, but at least `fewest`."""
        after, rows = self.comparison.after, self.rows
        runs = max(math.ceil((after.most_runs or _FEWEST_AGAIN) / (len(after.files) or 1)), fewest)
        takes = about(runs * self._run_of_each_s)
        in_all = max(_largest_fact(row, "of_both_sessions") for row in rows)
        more = in_all - len(self.measured.by_allocation)
        causes = {cause.code for row in rows for cause in row.entry.causes}
        if more < 2 or "perhaps_stragglers" in causes:
            text = "measure again at another time, beside these runs"
            text += ": it may decide about that rank" if more > 1 else ""
            return [*_either(self._measure(text, f"--runs {runs}", takes)), self._compare_all()]
        option, pattern = further((*after.files, "FILE")[0])
        _, added = further((*self.comparison.before.files, "FILE")[0], (*after.files, pattern))
        before = shlex.join(self.comparison.before.files)
        now = shlex.join(file for file in after.files if not Path(file).match(pattern))
        text = f"measure about {more} further sessions, best hours apart"
        steps = _either(self._measure(text, f"--runs {runs} {option}", takes and f"{takes} each"))
        lacking = in_all - _largest_fact(rows[0], "sessions")
        if lacking > 0 and self.comparison.baseline_kind == "baseline":
            text = f"measure about {lacking} for the baseline (as it was then), into {added}"
            steps.append(_Step("then", text, f"{ADD} {before} {added}"))
        once = "compare once, with all of them: a look after each errs more often"
        return [*steps, _Step("then", once, f"{_COMPARE} {before} {now} {pattern}")]

    def _compare_all(self) -> _Step:
        files = (*self.comparison.before.files, *self.comparison.after.files)
        command = f"{_COMPARE} {shlex.join(files)} {_new_file(self.comparison)}"
        return _Step("then", "compare all of them", command)

    def _how_to_find_change(self) -> str | _Command:
        """Return advice on finding the environment change at fault; empty if none is recorded."""
        comparison = self.comparison
        sides = (comparison.before.files, comparison.after.files)
        is_of_packages = any(note.code == "packages_changed" for note in comparison.notes)
        is_of_two_files = [*map(len, sides)] == [1, 1] and comparison.baseline_kind != "nights"
        if not (is_of_packages and is_of_two_files):
            pairs = changes_of(comparison, comparison.entries)
            found = {each.name for _, of_one in pairs for each in of_one}
            which = "the change" if len(found) == 1 else "the likeliest of the changes"
            return self._measure(f"measure again with {which} undone") if found else ""
        files, entry = shlex.join(file for side in sides for file in side), self.rows[0].entry
        command = entry.configuration and entry.configuration.command
        measured = f"-- {command}" if command else "FILE.py"
        return "find the package", f"gpuscale bisect {files} --gpus {entry.key.gpus} {measured}"

    def _more_before(self) -> list[_Step]:
        """Return advice for rows that need more baseline runs (or nights) for a verdict."""
        comparison, rows, kind = self.comparison, self.rows, self.comparison.baseline_kind
        sides = comparison.before, comparison.after
        before, after = (shlex.join(side.files or ["FILE"]) for side in sides)
        in_all = max(_largest_fact(row, "of_both") for row in rows)
        codes = {part.code for part in parts_of(self.rows[0].entry.reason)}
        if kind == "nights":
            far = "leave out any that 'gpuscale history' calls far from the others"
            return _either(f"compare again after more nights; {far}")
        if "both_sides_differ" in codes or in_all > _MOST_AGAIN:
            return self._quieter()
        sessions = _largest_fact(rows[0], "sessions")
        if kind == "results" and not (sessions or in_all):
            return self._another_session()
        # Runs that are judged, or were measured after a fault, would hide it in the baseline.
        lacking = max(1, in_all - (comparison.before.fewest_runs or 0))
        then = "baseline" if kind == "baseline" else "earlier results"
        option, pattern = further((*comparison.before.files, "FILE")[0], comparison.after.files)
        options = f"--runs {lacking} {option}" if in_all else option
        when = f", {at_other_times(sessions)}" if sessions else ""
        text = f"measure the machine as it was for the {then}, if you can{when}"
        runs = lacking if in_all else comparison.after.most_runs or 0
        takes = about(runs * self._run_of_each_s)
        note = f"{takes} each" if takes and sessions else takes
        earlier = self._measure(text, options, note, dropped=("--inject",))
        add = _Step("then", "add that to the baseline", f"{ADD} {before} {pattern}")
        if kind == "results":
            record = f"gpuscale baseline record {before} {pattern} --cluster before -o before.json"
            add = _Step("then", "make a baseline of all that (--weak if it is refused)", record)
            before = "before.json"
        more, again = in_all - (comparison.after.fewest_runs or 0), f"{_COMPARE} {before} {after}"
        now = [_Step("then", *self._more_now(more, in_all, ""))] if more > 0 else []
        is_new_file = now and len(comparison.after.files) > 1
        last = self._compare_all() if is_new_file else _Step("then", "compare again", again)
        return [*_either(earlier), add, *now, last]


def at_other_times(sessions: int) -> str:
    """Say at how many other times to measure until the spread of `sessions` is known."""
    lacking = MINIMUM_ALLOCATIONS - sessions
    return f"at {lacking} other times, best hours apart" if lacking > 1 else "at another time"


def _is_single(row: Row) -> bool:
    return any(part.code == "single_run" for part in parts_of(row.entry.reason))


def _soon(row: Row) -> int:
    """Return how many runs a row needs for a verdict, including those it has; 0 if unknown."""
    further = row.entry.further_runs
    return row.valid_runs + further if further else _largest_fact(row, "in_all")


def _largest_fact(row: Row, name: str) -> int:
    """Return the largest count with this name among the facts of a row's reasons; 0 if none."""
    found = (part.facts.get(name, 0) for part in parts_of(row.entry.reason))
    return max(count for count in found if isinstance(count, int))


def about(seconds: float) -> str:
    """Format an approximate duration: `about 12 min`, `about 3 h`; empty if it is unknown (0)."""
    minutes = math.ceil(seconds / 60)
    long = f"{minutes} min" if minutes < 120 else f"{round(minutes / 60)} h"
    short = f"{math.ceil(seconds / 10) * 10} s"
    return f"about {long if seconds > 100 else short}" if seconds else ""


def _caution(comparison: Comparison, notes: Container[str], worst_weight: int) -> str:
    """Return the most urgent note's advice, or ""; if all rows pass, only what cannot wait."""
    found = [words for code, words in WORDS.items() if words.caution and code in notes]
    first = [words.caution for words in found if words.caution_is_first]
    is_open = worst_weight == 1 and not first and comparison.baseline_kind != "nights"
    if is_open and "busy_host_before" in notes:
        # A busy host that slowed the baseline cannot explain a loss, only an open row.
        is_now = "busy_host" in notes
        first = [_BOTH_IDLE if is_now else "measure the baseline again once the host is idle"]
    others = [] if worst_weight == 2 else [words.caution for words in found]
    return next(filter(None, (*first, *others)), "")


def _is_change_suspected(comparison: Comparison, rows: Sequence[Row]) -> bool:
    """True if a recorded environment change may explain the first cause, which all `rows` share."""
    kind, entries = rows[0].entry.causes[0].kind, [row.entry for row in rows]
    return any(note.code == "packages_changed" for note in comparison.notes) or any(
        may_lead_to(change, kind)
        for _, changes in changes_of(comparison, entries)
        for change in changes
    )


def _words(row: Row) -> list[Words]:
    return [WORDS[part.code] for part in parts_of(row.entry.reason)]
