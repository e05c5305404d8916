"""`gpuscale baseline update`: new results in place of old ones, each change approved."""

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from gpuscale import recording
from gpuscale.cli.baseline import add_expiry, last_valid_day, login_name, measured_entries
from gpuscale.cli.inputs import read_all_results
from gpuscale.compare import compare
from gpuscale.compare.hardware import machine_mismatch
from gpuscale.errors import ExitCode, FileError, UsageError
from gpuscale.printable import clean
from gpuscale.records import Baseline, Results
from gpuscale.reports.reason_words import statement_text
from gpuscale.reports.show.baseline_text import EntryChange, changes_text
from gpuscale.store import read_baseline, write_baseline
from gpuscale.units import counted

_QUESTION = "[y]es, [n]o, [a]ll from here on, [q]uit: "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show what new results would change, and write what is approved: at the terminal, or "
        "with --accept. The old values and the reason are kept in the file's history."
    )
    parser.epilog = (
        "Exit codes: 0 written as approved, or nothing would change; 2 usage, unreadable "
        "input or another machine; 3 nothing was approved, or not all could be written."
    )
    parser.add_argument("baseline", metavar="BASELINE", help="the baseline file to change")
    parser.add_argument("results", metavar="RESULTS", nargs="+", help="results files")
    text = "approve this change, or 'all'; may be given several times"
    parser.add_argument("--accept", metavar="CASE[/STRATEGY][@GPUS]", action="append", help=text)
    parser.add_argument("--reason", metavar="TEXT", help="why, for the file's history")
    add_expiry(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show what would change, and write what was approved; 3 where that was not everything."""
    path = Path(arguments.baseline)
    read = read_baseline(path)
    results = read_all_results([Path(text) for text in arguments.results])
    mismatch = machine_mismatch(read.hardware, [result.environment for result in results])
    if mismatch is not None:
        raise UsageError(
            f"{statement_text(mismatch)}; a baseline is of one machine, so make another one with "
            "'gpuscale baseline record'"
        )
    expires_on = last_valid_day(arguments, measured_at=recording.measured_at(results))
    baseline = replace(read, expires_on=expires_on or read.expires_on)
    found = recording.proposals(baseline, results)
    if not found and baseline == read:
        sys.stdout.write("nothing would change\n")
        return ExitCode.OK
    if not found:
        write_baseline(path, baseline)
        sys.stdout.write(f"{path}: valid until {expires_on}; nothing else would change\n")
        return ExitCode.OK
    chosen, reason = _approved(arguments, baseline, found, results)
    if not chosen or not reason:
        names = dict.fromkeys(each.selectors[0] for each in found if not each.obstacle)
        how = recording.how_to_measure_more()
        if names:
            how = f"approve with --reason TEXT and --accept all, or {', '.join(names)}"
        sys.stdout.write(f"{path}: nothing was written; {how}\n")
        return ExitCode.INCONCLUSIVE
    after = recording.revised(
        baseline,
        chosen,
        results,
        reason=reason,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        by=login_name(),
    )
    if read_baseline(path) != read:
        raise FileError(path, "was changed by another command meanwhile; run this one again")
    write_baseline(path, after)
    sys.stdout.write(f"{path}: {len(chosen)} of {counted(len(found), 'change')} written\n")
    changed = {proposal.entry.configuration for proposal in chosen if proposal.entry.gpus > 1}
    for left in found:
        (configuration, gpus) = left.entry
        if left not in chosen and gpus == 1 and configuration in changed:
            why = "stays as it was: speedups are now over runs of another time"
            sys.stdout.write(f"note: {left.label} {why}\n")
    left_by_all = recording.EVERYTHING in (arguments.accept or ()) and len(chosen) < len(found)
    return ExitCode.INCONCLUSIVE if left_by_all else ExitCode.OK


def _approved(
    arguments: argparse.Namespace,
    baseline: Baseline,
    found: Sequence[recording.Proposal],
    results: Sequence[Results],
) -> tuple[tuple[recording.Proposal, ...], str]:
    """The proposals that are approved once all were shown, and why; either may be missing."""
    reason = clean(arguments.reason or "").strip()
    if arguments.accept and not reason:
        raise UsageError("--accept needs --reason TEXT, which is kept in the file's history")
    chosen = recording.accepted(found, arguments.accept or ())
    everything = recording.revised(baseline, found, results, reason="", at="")
    old, new = measured_entries(baseline), measured_entries(everything)
    changes = [
        EntryChange(old=old.get(each.entry), new=new[each.entry], remark=each.remark)
        for each in found
    ]
    text = changes_text(changes, baseline, everything, compare(baseline, results))
    sys.stdout.write(f"{text}\n\n")
    if not arguments.accept and sys.stdin.isatty() and sys.stdout.isatty():
        chosen = _asked(found)
        reason = reason or (clean(_answer("reason, for the file's history: ")) if chosen else "")
    return chosen, reason


def _asked(found: Sequence[recording.Proposal]) -> tuple[recording.Proposal, ...]:
    """The proposals that the user at the terminal approves; the end of input approves nothing."""
    chosen: list[recording.Proposal] = []
    answer = ""
    for proposal in found:
        if proposal.obstacle:
            continue
        if answer != "a":
            answer = _answer(f"accept {proposal.label}? {_QUESTION}")[:1].lower()
        if answer in ("", "q"):
            return () if not answer else tuple(chosen)
        if answer in ("y", "a"):
            chosen.append(proposal)
    return tuple(chosen)


def _answer(question: str) -> str:
    # The end of input is the empty text; a bare return key is no answer, so it asks again.
    while True:
        sys.stdout.write(question)
        sys.stdout.flush()
        line = sys.stdin.readline()
        if not line or line.strip():
            return line.strip()
