"""`gpuscale baseline update`: replace entries of a baseline, or add runs, if the user approves."""

import argparse
import getpass
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from gpuscale.analysis.moderation import MINIMUM_ALLOCATIONS
from gpuscale.base.errors import ExitCode, UsageError
from gpuscale.base.text import clean, counted, joined, no_such, rough_percent, visible
from gpuscale.cli import inputs
from gpuscale.cli.inputs import each_run_once, read_all_results, results_path, say
from gpuscale.judge.baseline import (
    HOW_TO_MEASURE_MORE,
    EntryId,
    Proposal,
    entries_of,
    proposals,
    revised,
)
from gpuscale.judge.compare import compare
from gpuscale.judge.compare.matching import machine_mismatch
from gpuscale.judge.diagnose.causes import diagnose
from gpuscale.judge.sides import results_of, sides_of
from gpuscale.records import Baseline, Results, Run, Verdict
from gpuscale.records.environment_diff import listed
from gpuscale.records.record import NAME_LIMIT
from gpuscale.records.verdict import EntryVerdict
from gpuscale.reports.comparison.next_step import ADD, at_other_times, further, measuring
from gpuscale.reports.phrases import format_range, runs_text, to_minutes, verdict_word
from gpuscale.reports.reason_words import reason_text, statement_text
from gpuscale.reports.screen import Screen, labelled_lines
from gpuscale.reports.show.formats import step_time_text
from gpuscale.store.files import read_baseline, write_baseline

_MOST_NAMED = 5
_NIGHTS = 5
"""Number of a baseline's latest nights from which the smallest loss that is found is estimated."""
_EVERYTHING = "all"
_IF_UNCHANGED = "if nothing was changed, sessions of this machine differ that much: approve it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show what new results would change, and write the changes that are approved with "
        "--accept. The old values and the reason stay in the file's history."
    )
    parser.epilog = (
        "Exit codes: 0 written as approved, or nothing would change; 2 usage, unreadable "
        "input or another machine; 3 nothing was approved, or not all could be written."
    )
    add = parser.add_argument
    add("baseline", metavar="BASELINE", type=Path, help="the baseline file to change")
    add("results", metavar="RESULTS", type=results_path, nargs="+", help="results files")
    text = (
        "add the runs to those of the baseline instead of replacing them; only rows that "
        "regressed or improved, or are new, must be approved"
    )
    add("--add", action="store_true", help=text)
    text = "approve this change, or 'all' changes; may be given several times"
    add("--accept", metavar="CASE[/STRATEGY][@GPUS]", action="append", help=text)
    add("--reason", metavar="TEXT", help="why, for the file's history")


def run(arguments: argparse.Namespace) -> int:
    path = arguments.baseline
    baseline, results = read_baseline(path), read_all_results(arguments.results)
    mismatch = machine_mismatch(baseline.hardware, [result.environment for result in results])
    if mismatch is not None:
        raise UsageError(
            f"{statement_text(mismatch)}; a baseline describes one machine, so make another "
            "one with 'gpuscale baseline record'"
        )
    if arguments.add:
        known = results_of(baseline)
        results = each_run_once([*known, *results])[len(known) :]
    if not (proposed := proposals(baseline, results, add=arguments.add)):
        say("nothing would change")
        return ExitCode.OK
    chosen, reason = _approved(arguments, baseline, proposed, results)
    if not chosen or not reason:
        names = dict.fromkeys(p.selectors[0] for p in proposed if not p.obstacle)
        say(f"{path}: nothing was written" + ("" if names else f"; {HOW_TO_MEASURE_MORE}"))
        if names:
            files = joined(visible(f"{file}") for file in (path, *arguments.results))
            update = ADD if arguments.add else ADD.removesuffix(" --add")
            why = _IF_UNCHANGED if arguments.add else "if all of it is intended, approve it"
            some = ("or", f"only some: --accept {' or '.join(names)}")
            _say_steps(("next", why), ("run", f"{update} {files} --accept all --reason TEXT"), some)
        return ExitCode.INCONCLUSIVE
    now = datetime.now(UTC).isoformat(timespec="seconds")
    after = revised(baseline, chosen, results, reason=reason, at=now, by=login_name())
    strength = _strength(baseline, after) if arguments.add else ""
    write_baseline(path, after)
    say(f"{path}: {len(chosen)} of {counted(len(proposed), 'change')} written")
    if arguments.add:
        say(strength)
        inputs.remark_differences([*after.environments.values()])
        say_how_to_extend(path, after, results[-1].started_as)
    by_all = arguments.add or _EVERYTHING in (arguments.accept or ())
    return ExitCode.INCONCLUSIVE if by_all and len(chosen) < len(proposed) else ExitCode.OK


def _strength(before: Baseline, after: Baseline) -> str:
    """Describe the smallest detectable slowdowns after and before, with a reason if they grew."""
    sizes = night_sizes(after) | night_sizes(before)
    old, new = smallest_losses(before, sizes), smallest_losses(after, sizes)
    why = "; the added runs show that runs or sessions differ more than it seemed"
    why = why if new[0].loss > old[0].loss else ""
    return f"{strength_text(new, sizes)}; before: {range_text(old)}{why}"


def additions(
    baseline: Baseline,
    proposed: Sequence[Proposal],
    approved: Sequence[Proposal],
    results: Sequence[Results],
) -> tuple[tuple[Proposal, ...], str]:
    """Return the proposals to add and a summary; both empty if a changed row is not approved.

    A row has changed if it regressed or improved in any night; nights are judged one by one.
    """
    changed: dict[EntryId, str] = {}
    nights = {run.identity: file.allocation_of(run) for file in results for run in file.runs}
    for night in dict.fromkeys(nights.values()):
        of_night = [
            replace(file, runs=tuple(run for run in file.runs if nights[run.identity] == night))
            for file in results
        ]
        for row in diagnose(sides_of(baseline, of_night), compare(baseline, of_night)).entries:
            if row.verdict is Verdict.INCOMPARABLE:
                raise UsageError(f"{row.label} in {night}: {reason_text(row)}")
            if row.verdict in (Verdict.REGRESSED, Verdict.IMPROVED) and row.configuration:
                entry = EntryId(row.configuration, row.key.gpus)
                changed[entry] = f"{row.label} {row.verdict} in {night}"
    if left := [changed[p.entry] for p in proposed if p.entry in changed and p not in approved]:
        why = "not added, since it would hide this change from later comparisons"
        say(f"{to_minutes(listed(left, _MOST_NAMED))}: {why}")
        return (), ""
    chosen = tuple(p for p in proposed if not p.obstacle and (p.old or p in approved))
    count = counted(sum(len(p.new) - len(p.old) for p in chosen), "run")
    return chosen, f"{count} added, of {listed([*dict.fromkeys(nights.values())], _MOST_NAMED)}"


def _approved(
    arguments: argparse.Namespace,
    baseline: Baseline,
    proposed: Sequence[Proposal],
    results: Sequence[Results],
) -> tuple[tuple[Proposal, ...], str]:
    """Print all proposals; return the approved ones, and the reason to record with them."""
    reason = clean(arguments.reason or "").strip()
    if arguments.accept and not reason:
        raise UsageError("--accept needs --reason TEXT, which is kept in the file's history")
    chosen = accepted(proposed, arguments.accept or ())
    verdicts = _verdicts(baseline, results)
    if arguments.add:
        # An open verdict is no obstacle to adding runs.
        verdicts = {e: r for e, r in verdicts.items() if r.verdict is not Verdict.INCONCLUSIVE}
    say("\n\n".join("\n".join(_change_lines(each, verdicts)) for each in proposed), end="\n\n")
    if arguments.add:
        chosen, runs = additions(baseline, proposed, chosen, results)
        reason = f"{reason}: {runs}" if reason else runs
    return chosen, reason


def _verdicts(baseline: Baseline, results: Sequence[Results]) -> dict[EntryId, EntryVerdict]:
    # For each entry, the verdict on measured runs precedes that on a published figure.
    return {
        EntryId(row.configuration, row.key.gpus): row
        for row in reversed(compare(baseline, results).entries)
        if row.configuration is not None
    }


def accepted(found: Sequence[Proposal], selectors: Sequence[str]) -> tuple[Proposal, ...]:
    """Return the selected proposals in `found`; `all` selects those that have no obstacle."""
    chosen = [p for p in found if not p.obstacle] if _EVERYTHING in selectors else []
    for selector in selectors:
        named = [p for p in found if selector in p.selectors]
        if selector != _EVERYTHING and not named:
            names = [*dict.fromkeys(p.selectors[0] for p in found)]
            raise UsageError(f"--accept: {no_such(selector, names)}")
        if refused := [p for p in named if p.obstacle]:
            why = f"{refused[0].label} {refused[0].obstacle}"
            raise UsageError(f"--accept {selector}: {why}; nothing was written")
        chosen += named
    return tuple(p for p in found if p in chosen)


def _change_lines(proposal: Proposal, verdicts: Mapping[EntryId, EntryVerdict]) -> Iterator[str]:
    yield f"{proposal.label}: {proposal.remark}" if proposal.remark else proposal.label
    sides = [runs for runs in (proposal.old, proposal.new) if runs]
    yield f"  step time   {' → '.join(map(step_time_text, sides))}"
    yield f"  measured    {' → '.join(map(runs_text, sides))}"
    if proposal.old and (verdict := verdicts.get(proposal.entry)) is not None:
        yield f"  judged      {verdict_word(verdict.verdict)}: {reason_text(verdict)}"


def login_name() -> str | None:
    """Return the user's login name; None if the system does not know it, as in some containers."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):
        return None
    return clean(name).strip()[:NAME_LIMIT] or None


def say_how_to_extend(path: Path, baseline: Baseline, started_as: str | None) -> None:
    """If a baseline has too few sessions, print how to add some with the command `started_as`."""
    sessions = len({run.allocation for run in baseline.runs})
    if sessions < MINIMUM_ALLOCATIONS:
        runs, when = max(night_sizes(baseline).values()), at_other_times(sessions)
        spread = f"from {MINIMUM_ALLOCATIONS} sessions on, their spread is known, not assumed"
        option, pattern = further(visible(f"{path}"))
        again = measuring(started_as, f"--runs {runs} {option}")
        add = f"{ADD} {joined([visible(f'{path}')])} {pattern}"
        how = ("next", f"measure {when}, and add these files; {spread}"), ("run", again)
        _say_steps(*how, ("then", "add them"), ("run", add))


def _say_steps(*steps: tuple[str, str]) -> None:
    say("\n".join(labelled_lines(steps, Screen.of(sys.stdout).columns)))


class SmallestLoss(NamedTuple):
    """The smallest slowdown of a baseline entry that a single nightly run would detect."""

    loss: float
    """Smallest detectable slowdown as a fraction; infinite if none could be detected."""
    label: str
    step_time: str

    def __str__(self) -> str:
        limit = _size(self.loss) if math.isinf(self.loss) else f"from {_size(self.loss)}"
        return f"{self.label} {limit} (step time {self.step_time})"


def night_sizes(baseline: Baseline) -> dict[EntryId, int]:
    """Return each entry's median number of runs per night (the higher of two middle values)."""
    return {
        entry: statistics.median_high(Counter(run.allocation for run in runs).values())
        for entry, runs in entries_of(baseline.runs).items()
    }


def smallest_losses(baseline: Baseline, sizes: Mapping[EntryId, int]) -> list[SmallestLoss]:
    """Return the smallest slowdown of each entry that one night would detect, largest first.

    `sizes` is the number of runs of each entry in such a night. The baseline's latest nights are
    divided into nights of that size and judged like new ones; the result is the median over them.
    """
    runs = entries_of(baseline.runs)
    nights = [part for night in results_of(baseline) for part in _parts(night, sizes)]
    held = [{*entries_of(night.runs)} for night in nights]
    # Judging all nights takes minutes if they are hundreds.
    last = {entry: [i for i, of in enumerate(held) if entry in of][-_NIGHTS:] for entry in runs}
    judged = {
        i: _verdicts(baseline, [nights[i]]) for i in {i for chosen in last.values() for i in chosen}
    }
    found = []
    for entry, chosen in last.items():
        rows = [judged[i][entry] for i in chosen]
        losses = (row.minimum_detectable_loss for row in rows)
        loss = statistics.median_high(math.inf if loss is None else loss for loss in losses)
        found.append(SmallestLoss(loss, rows[0].label, step_time_text(runs[entry])))
    return sorted(found, key=lambda each: -each.loss)


def _parts(night: Results, sizes: Mapping[EntryId, int]) -> list[Results]:
    """Divide a night into parts with `sizes[entry]` runs of each entry; drop runs left over."""
    parts: dict[int, list[Run]] = {}
    for entry, runs in entries_of(night.runs).items():
        size = sizes[entry]
        for part in range(len(runs) // size):
            parts.setdefault(part, []).extend(runs[part * size : (part + 1) * size])
    return [replace(night, runs=tuple(runs)) for runs in parts.values()]


def strength_text(losses: Sequence[SmallestLoss], sizes: Mapping[EntryId, int]) -> str:
    """Say how small a loss one session with these numbers of runs would find 19 times in 20."""
    runs = [f"{size}" for size in sorted(sizes.values())]
    night = f"one session of {format_range(runs)} run{'' if runs[-1] == '1' else 's'} a row"
    return f"the smallest loss that {night} would find 19 times in 20: {range_text(losses)}"


def range_text(losses: Sequence[SmallestLoss]) -> str:
    """Format a range of slowdowns: `4.3 % (cnn/ddp on 4 GPUs) to 6.2 % (cnn/ddp on 1 GPU)`."""
    largest, smallest = losses[0], losses[-1]
    if _size(largest.loss) == _size(smallest.loss):
        return _size(smallest.loss)
    return f"{_size(smallest.loss)} ({smallest.label}) to {_size(largest.loss)} ({largest.label})"


def _size(loss: float) -> str:
    return "none" if math.isinf(loss) else rough_percent(loss)
