"""`gpuscale bisect`: find which package, variable or commit makes training slower."""

import argparse
import hashlib
import itertools
import math
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuscale.base.errors import ExitCode, UsageError
from gpuscale.base.text import counted, format_seconds
from gpuscale.campaigns.bisection import kinds
from gpuscale.campaigns.bisection.commits import Commits
from gpuscale.campaigns.bisection.packages import Packages
from gpuscale.campaigns.bisection.search import Search
from gpuscale.campaigns.bisection.trials import AlternatingTrials, SpeedDifference, TrialRunner
from gpuscale.cli.inputs import remark, validate_output
from gpuscale.judge.stopping import SequentialPlan
from gpuscale.measure.run_directory import scratch_folder
from gpuscale.plugin.option_types import words_for_pytest
from gpuscale.plugin.options import OPTIONS, parse_options
from gpuscale.records import Estimate
from gpuscale.records.cause import Bisection, BisectionFinding
from gpuscale.records.environment_diff import listed
from gpuscale.reports.campaign_text import bisection_text, report_text, trial_text
from gpuscale.reports.phrases import software_text
from gpuscale.store.files import file_errors, sole_use, write_report

_FOLDER = Path(".gpuscale") / "bisect"
_OWN = ("results", "resume", "baseline", "injections", "runs")
_OPTIONS = [option for name, option in OPTIONS.items() if name not in _OWN]
"""Options that gpuscale adds to pytest, without those that a bisection ignores or sets itself."""
_EXIT_CODES = {
    BisectionFinding.FOUND: ExitCode.OK,
    BisectionFinding.SUSPECTED: ExitCode.INCONCLUSIVE,
    BisectionFinding.UNDECIDED: ExitCode.INCONCLUSIVE,
    BisectionFinding.SAME: ExitCode.NOTHING_COMPARABLE,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "gpuscale bisect GOOD BAD --gpus N [options] FILE.py | -- COMMAND …\n"
        "       gpuscale bisect --git REPO GOOD..BAD --gpus N [options] FILE.py | -- COMMAND …"
    )
    parser.description = (
        "Find which package, variable or commit makes training slower in BAD than in GOOD: "
        "environments with some of the changes are made and measured in turn. GOOD and BAD are "
        "environments, lists of pinned packages (.txt) or results; uv installs mixtures of their "
        "packages. Results with equal packages are searched for environment variables instead. If "
        "the command is killed, run it again: it goes on from the runs that are kept."
    )
    parser.epilog = (
        "Exit codes: 0 found and proved, 2 usage, 3 suspected or undecided, 4 no difference."
    )
    _add_options(parser)
    # All words from GOOD on, including options; `_rest` parses them.
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--git", metavar="REPO", type=Path, help="try the commits GOOD..BAD of a repository")
    text = "index from which uv takes packages (default: uv's)"
    add("--index-url", metavar="URL", help=text)
    text = "folder of wheels from which uv takes packages instead, for nodes without network"
    add("--wheelhouse", metavar="DIR", type=Path, help=text)
    text = "maximum number of comparisons of environments (default: enough for three culprits)"
    add("--trials", metavar="N", type=int, help=text)
    add("--time", metavar="MINUTES", type=float, help="start no run after this (default: no limit)")
    text = "runs of each environment in a trial; it ends once it is decided (default: 3:8)"
    add("--runs", metavar="MIN:MAX", help=text)
    add("--report", metavar="FILE.md", type=Path, help="write the result as Markdown, for an issue")
    for option in _OPTIONS:
        add(option.flag, **option.settings())


def run(arguments: argparse.Namespace) -> int:
    sides, measured, is_command = _rest(arguments)
    plan, words = _validated(arguments, sides, measured, is_command)
    end_s = math.inf if arguments.time is None else time.monotonic() + 60 * arguments.time
    kind = _kind(arguments, sides, is_command)
    ends = [kind.name_of(frozenset(range(count))) for count in (0, len(kind.changes))]
    number = hashlib.sha256(repr((ends, measured, words)).encode()).hexdigest()[:8]
    folder = (_FOLDER / number).absolute()
    used = "the same bisection is running already; wait for it, or end it"
    with sole_use(folder, used), scratch_folder("gpuscale-bisect-") as scratch:
        runner = TrialRunner(
            kind=kind,
            folder=folder,
            scratch=scratch,
            measured=measured,
            is_command=is_command,
            options=words,
            end_s=end_s,
        )
        try:
            if isinstance(kind, Packages):
                remark("installing GOOD and BAD")
            with file_errors(folder):
                kind.prepare(folder / "environments")
            found, lines = _searched(runner, plan, arguments.trials)
        finally:
            # Results and logs are kept. If this process is killed, the next bisection cleans up.
            shutil.rmtree(folder / "environments", ignore_errors=True)
    return _reported(arguments, found, runner, lines)


def _kind(arguments: argparse.Namespace, sides: Sequence[str], is_command: bool) -> kinds.Kind:
    if arguments.git is not None:
        return Commits(repository=arguments.git, span=sides[0])
    good, bad = (kinds.side_of(Path(side)) for side in sides)
    if good.pins == bad.pins and good.variables != bad.variables:
        left = kinds.differences_elsewhere(good, bad, tried={*good.variables, *bad.variables})
        return kinds.Variables(good=good.variables, bad=bad.variables, not_tried=left)
    kinds.validate_sides(good, bad)
    python = good.python or bad.python or (sys.executable if not is_command else "")
    here = ".".join(platform.python_version_tuple()[:2])
    if not is_command and (good.python_version or here) != here:
        problem = f"GOOD has Python {good.python_version}, gpuscale runs in {here}"
        raise UsageError(f"{problem}, so it cannot train a case there; install it in that Python")
    return Packages(
        uv=kinds.uv_program(),
        python=python,
        good=good,
        bad=bad,
        needs_gpuscale=not is_command,
        options=_sources(arguments),
    )


def _searched(
    runner: TrialRunner, plan: SequentialPlan, most: int | None
) -> tuple[Bisection, list[str]]:
    """Bisect in at most `most` trials (None: a default); return the result and lines to report."""
    changes, groups, kind = runner.kind.changes, runner.kind.groups, runner.kind
    together = [changes[at].name for at, number in enumerate(groups) if groups.count(number) > 1]
    moving = f" ({len(together)} move together: {listed(together)})" if together else ""
    verb = "differ" if len(changes) > 1 else "differs"
    differing = f"{counted(len(changes), kind.noun)} {verb}{moving}"
    most = most or 3 * math.ceil(1.5 * math.log2(len(changes) + 1)) + 12
    kept = f"runs are kept in {os.path.relpath(runner.folder)}"
    remark(f"{differing}; at most {counted(most, 'trial')}; {kept}")
    lines = [differing]
    moments_s = [time.monotonic()]

    def tell(
        number: int, sides: Sequence[kinds.Applied], steps: Sequence[SpeedDifference] | None
    ) -> None:
        if steps is None and number == 1:
            # The error that is raised below reports it.
            return
        rows: list[tuple[str, str, Estimate | None]] = []
        if steps is None:
            broken = next(side for side in sides if side in turns.broken)
            rows.append(("no number", f"{kind.words_of(broken)} ({runner.failure})", None))
        else:
            rows.append(("from", kind.words_of(sides[0]), None))
            for side, step in zip(sides[1:], steps, strict=True):
                rows.append((step.answer.value, kind.words_of(side), step.speed))
        moments_s.append(time.monotonic())
        # Trials of runs that are kept take no time.
        longest_s = max(after - before for before, after in itertools.pairwise(moments_s))
        left_s = longest_s * (most - number)
        left = f", about {format_seconds(left_s)} left" if left_s > 60 else ""
        trial = f"trial {number} of at most {most}"
        text = trial_text(rows)
        lines.extend((trial, text))
        remark(f"{trial}{left}\n{text}")

    turns = AlternatingTrials(runner.make_run, plan)
    found = Search(
        turns=turns, groups=groups, most_trials=most, is_ordered=kind.is_ordered, tell=tell
    ).run()
    if found is None:
        side = "GOOD" if frozenset() in turns.broken else "BAD"
        problem = f"{side} cannot be measured: {runner.failure}"
        raise UsageError(f"{problem}; see the logs in {runner.folder / 'runs'}")
    return found, lines


def _reported(
    arguments: argparse.Namespace, found: Bisection, runner: TrialRunner, lines: Sequence[str]
) -> int:
    kind, changes = runner.kind, runner.kind.changes
    if found.finding is BisectionFinding.REVERSED:
        raise UsageError("GOOD is slower than BAD on this machine; swap them")
    remedies = [changes[at].remedy for unit in found.culprits for at in unit]
    report = "" if arguments.report else "; for an issue: the same command with --report FILE.md"
    texts = [change.text for change in changes]
    remedy = f"{', '.join(remedies)}{report}"
    result = bisection_text(found, texts, remedy, kind.not_tried, is_ordered=kind.is_ordered)
    sys.stdout.write(f"{result}\n")
    if arguments.report is not None:
        measured = f"{shlex.join(runner.measured)}, --gpus {arguments.gpus}"
        if (here := runner.environment) is not None:
            measured += f", on {here.hardware_label}; {software_text(here)}"
        write_report(arguments.report, report_text(result, measured, lines, texts))
    return _EXIT_CODES[found.finding]


def _rest(arguments: argparse.Namespace) -> tuple[list[str], list[str], bool]:
    """Parse `arguments.rest` into the sides, the test or command, and True if it is a command."""
    rest: list[str] = arguments.rest
    at = rest.index("--") if "--" in rest else len(rest)
    parser = argparse.ArgumentParser(prog="gpuscale bisect", add_help=False, allow_abbrev=False)
    _add_options(parser)
    parser.add_argument("words", nargs="*")
    parser.parse_intermixed_args(rest[:at], arguments)
    number = 1 if arguments.git is not None else 2
    sides, files, command = arguments.words[:number], arguments.words[number:], rest[at + 1 :]
    if len(sides) < number:
        raise UsageError("name GOOD and BAD, or --git REPO GOOD..BAD; see gpuscale bisect --help")
    if bool(files) == bool(command):
        raise UsageError("name a test file, or a command after --, such as -- python train.py")
    if len(files) > 1:
        raise UsageError(f"one test file is measured, not {len(files)}; name it as FILE.py::test")
    return sides, command or files, bool(command)


def _validated(
    arguments: argparse.Namespace, sides: Sequence[str], measured: Sequence[str], is_command: bool
) -> tuple[SequentialPlan, list[str]]:
    """Validate the options; return the limits on runs per trial and the options for pytest."""
    if arguments.gpus is None or "," in arguments.gpus:
        raise UsageError("give one number of GPUs, on which the loss is seen, such as --gpus 4")
    own = ("baseline", "runs")
    parse_options({dest: value for dest, value in vars(arguments).items() if dest not in own})
    bounds: Any = OPTIONS["runs"].parse(arguments.runs or "3:8")
    fewest, most = bounds
    if fewest is None:
        raise UsageError("--runs: give a minimum and a maximum, such as --runs 3:8")
    for flag, budget in (("--trials", arguments.trials), ("--time", arguments.time)):
        if budget is not None and not budget > 0:
            raise UsageError(f"{flag}: {budget:g} allows no run; give a number above 0")
    name = Path(measured[0]).name
    if is_command and "/" in measured[0] and name.startswith(("python", "torchrun", "accelerate")):
        problem = f"every trial would run {measured[0]}, which belongs to one environment"
        raise UsageError(f"{problem}; write {name}, so that each trial runs its own")
    if arguments.report is not None:
        validate_output(arguments.report, [*map(Path, sides)], "--report")
    words = words_for_pytest(_OPTIONS, vars(arguments))
    return SequentialPlan(fewest_runs=fewest, most_runs=most), words


def _sources(arguments: argparse.Namespace) -> list[str]:
    if arguments.wheelhouse is not None:
        if not arguments.wheelhouse.is_dir():
            raise UsageError(f"--wheelhouse: {arguments.wheelhouse} is not a folder")
        return ["--no-index", "--find-links", os.fspath(arguments.wheelhouse.absolute())]
    return [] if arguments.index_url is None else ["--index-url", arguments.index_url]
