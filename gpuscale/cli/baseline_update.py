"""`gpuscale baseline update`: replace entries of a baseline, or add runs, if the user approves."""

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from gpuscale.base.errors import ExitCode, FileError, UsageError
from gpuscale.base.printable import clean
from gpuscale.base.units import counted, rough_percent
from gpuscale.cli.baseline import (
    MOST_NAMED,
    TOO_WEAK,
    add_expiry,
    last_valid_day,
    login_name,
    measured_entries,
    range_text,
    smallest_losses,
    validate_strength,
)
from gpuscale.cli.inputs import each_run_once, read_all_results
from gpuscale.judge import recording
from gpuscale.judge.compare import compare
from gpuscale.judge.compare.hardware import machine_mismatch
from gpuscale.judge.recording import EntryId, Proposal
from gpuscale.records import Baseline, Results, Verdict
from gpuscale.records.environment_diff import listed
from gpuscale.reports.reason_words import reason_text, statement_text
from gpuscale.reports.show.baseline_text import EntryChange, changes_text
from gpuscale.store import read_baseline, write_baseline

_QUESTION = "[y]es, [n]o, [a]ll from here on, [q]uit: "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show what new results would change, and write the changes that are approved at the "
        "terminal or with --accept. The old values and the reason stay in the file's history."
    )
    parser.epilog = (
        "Exit codes: 0 written as approved, or nothing would change; 2 usage, unreadable "
        "input or another machine; 3 nothing was approved, or not all could be written."
    )
    parser.add_argument("baseline", metavar="BASELINE", help="the baseline file to change")
    parser.add_argument("results", metavar="RESULTS", nargs="+", help="results files")
    text = (
        "add the runs to those of the baseline instead of replacing them; only rows that "
        "regressed or improved, or are new, must be approved"
    )
    parser.add_argument("--add", action="store_true", help=text)
    text = f"with --add: write rows that would then find no loss below {rough_percent(TOO_WEAK)}%"
    parser.add_argument("--weak", action="store_true", help=text)
    text = "approve this change, or 'all' changes; may be given several times"
    parser.add_argument("--accept", metavar="CASE[/STRATEGY][@GPUS]", action="append", help=text)
    parser.add_argument("--reason", metavar="TEXT", help="why, for the file's history")
    add_expiry(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show all changes and write those approved; return 3 if a requested change is not written."""
    path = Path(arguments.baseline)
    read = read_baseline(path)
    results = read_all_results([Path(text) for text in arguments.results])
    mismatch = machine_mismatch(read.hardware, [result.environment for result in results])
    if mismatch is not None:
        raise UsageError(
            f"{statement_text(mismatch)}; a baseline is of one machine, so make another one with "
            "'gpuscale baseline record'"
        )
    expires_on = last_valid_day(arguments)
    baseline = replace(read, expires_on=expires_on or read.expires_on)
    if arguments.add:
        known = recording.results_of(baseline)
        results = each_run_once([*known, *results])[len(known) :]
    proposed = recording.proposals(baseline, results, beside=arguments.add)
    if not proposed:
        done = "nothing would change"
        if baseline != read:
            write_baseline(path, baseline)
            done = f"{path}: valid until {expires_on}; nothing else would change"
        sys.stdout.write(f"{done}\n")
        return ExitCode.OK
    chosen, reason = _approved(arguments, baseline, proposed, results)
    if not chosen or not reason:
        names = dict.fromkeys(
            proposal.selectors[0] for proposal in proposed if not proposal.obstacle
        )
        how = recording.how_to_measure_more()
        if names:
            how = f"approve with --reason TEXT and --accept all, or {', '.join(names)}"
        sys.stdout.write(f"{path}: nothing was written; {how}\n")
        return ExitCode.INCONCLUSIVE
    now = datetime.now(UTC).isoformat(timespec="seconds")
    after = recording.revised(baseline, chosen, results, reason=reason, at=now, by=login_name())
    strength = _strength(baseline, after, weak=arguments.weak) if arguments.add else ""
    if read_baseline(path) != read:
        raise FileError(path, "was changed by another command meanwhile; run this one again")
    write_baseline(path, after)
    sys.stdout.write(f"{path}: {len(chosen)} of {counted(len(proposed), 'change')} written\n")
    if arguments.add:
        sys.stdout.write(f"{strength}\n")
    else:
        _note_older_references(proposed, chosen)
    by_all = arguments.add or recording.EVERYTHING in (arguments.accept or ())
    return ExitCode.INCONCLUSIVE if by_all and len(chosen) < len(proposed) else ExitCode.OK


def _strength(before: Baseline, after: Baseline, *, weak: bool) -> str:
    """Return a text on the losses that added runs detect; UsageError if too few are left."""
    old, new = smallest_losses(before), smallest_losses(after)
    if not weak:
        remedy = "add a night whose runs agree with the others, or add these with --weak"
        known = {each.label: each.loss for each in old}
        validate_strength(new, remedy, condition="with these runs ", known=known)
    found = f"the smallest loss that as many runs again would find: {range_text(new)}"
    return f"{found}; before: {range_text(old)}"


def _note_older_references(proposed: Sequence[Proposal], chosen: Sequence[Proposal]) -> None:
    """Print the 1-GPU rows that stay unchanged although multi-GPU rows based on them change."""
    changed = {proposal.entry.configuration for proposal in chosen if proposal.entry.gpus > 1}
    for left in proposed:
        if left not in chosen and left.entry.gpus == 1 and left.entry.configuration in changed:
            why = "stays as it was: speedups are now over runs of another time"
            sys.stdout.write(f"note: {left.label} {why}\n")


def additions(
    baseline: Baseline,
    proposed: Sequence[Proposal],
    approved: Sequence[Proposal],
    results: Sequence[Results],
) -> tuple[tuple[Proposal, ...], str]:
    """Return the proposals to add, and a summary of their runs.

    Both are empty if a row got faster or slower and the user did not approve the change. Each
    nightly run is judged separately, since a good one would hide the loss in a bad one.
    """
    changed: dict[EntryId, str] = {}
    nights = {run.identity: file.allocation_of(run) for file in results for run in file.runs}
    for night in dict.fromkeys(nights.values()):
        of_night = [
            replace(file, runs=tuple(run for run in file.runs if nights[run.identity] == night))
            for file in results
        ]
        for row in compare(baseline, of_night).entries:
            if row.verdict is Verdict.INCOMPARABLE:
                raise UsageError(f"{row.key.label} in {night}: {reason_text(row)}")
            if row.verdict in (Verdict.REGRESSED, Verdict.IMPROVED) and row.configuration:
                entry = EntryId(row.configuration, row.key.gpus)
                changed[entry] = f"{row.key.label} {row.verdict} in {night}"
    if left := [changed[p.entry] for p in proposed if p.entry in changed and p not in approved]:
        why = "added, it would hide or bless what changed"
        sys.stdout.write(f"{listed(left, MOST_NAMED)}: {why}\n")
        return (), ""
    chosen = tuple(p for p in proposed if not p.obstacle and (p.old or p in approved))
    count = counted(sum(len(p.new) - len(p.old) for p in chosen), "run")
    return chosen, f"{count} added, of {listed([*dict.fromkeys(nights.values())], MOST_NAMED)}"


def _approved(
    arguments: argparse.Namespace,
    baseline: Baseline,
    proposed: Sequence[Proposal],
    results: Sequence[Results],
) -> tuple[tuple[Proposal, ...], str]:
    """Show all proposals; return those approved and the user's reason (either may be empty)."""
    reason = clean(arguments.reason or "").strip()
    if arguments.accept and not reason:
        raise UsageError("--accept needs --reason TEXT, which is kept in the file's history")
    chosen = recording.accepted(proposed, arguments.accept or ())
    everything = recording.revised(baseline, proposed, results, reason="", at="")
    old, new = measured_entries(baseline), measured_entries(everything)
    changes = [
        EntryChange(old=old.get(one.entry), new=new[one.entry], remark=one.remark)
        for one in proposed
    ]
    judged = "new alone" if arguments.add else "judged"
    text = changes_text(changes, baseline, everything, compare(baseline, results), judged)
    sys.stdout.write(f"{text}\n\n")
    if arguments.add:
        chosen, runs = additions(baseline, proposed, chosen, results)
        reason = f"{reason}: {runs}" if reason else runs
    elif not arguments.accept and sys.stdin.isatty() and sys.stdout.isatty():
        chosen = _asked(proposed)
        reason = reason or (clean(_answer("reason, for the file's history: ")) if chosen else "")
    return chosen, reason


def _asked(proposed: Sequence[Proposal]) -> tuple[Proposal, ...]:
    """Ask the user about each proposal; return the approved ones, or none if the input ends."""
    chosen: list[Proposal] = []
    answer = ""
    for proposal in proposed:
        if proposal.obstacle:
            continue
        if answer != "a":
            answer = _answer(f"accept {proposal.label}? {_QUESTION}")[:1].lower()
        if answer in ("", "q"):
            return tuple(chosen) if answer else ()
        if answer in ("y", "a"):
            chosen.append(proposal)
    return tuple(chosen)


def _answer(question: str) -> str:
    """Ask until the answer is not blank; return an empty string at the end of input."""
    while True:
        sys.stdout.write(question)
        sys.stdout.flush()
        line = sys.stdin.readline()
        if not line or line.strip():
            return line.strip()
