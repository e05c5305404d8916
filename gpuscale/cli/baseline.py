"""`gpuscale baseline`: make a baseline from results or a table, show it, or update it."""

import argparse
import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from gpuscale.analysis.moderation import MINIMUM_ALLOCATIONS
from gpuscale.base.errors import ExitCode, FileError, UsageError
from gpuscale.base.host import DEVICES, UNRECORDED
from gpuscale.base.text import counted, escaped, joined, rough_percent, visible
from gpuscale.cli import baseline_update, show
from gpuscale.cli.import_ import add_recorded, defaults_of, paths_of, sessions_in
from gpuscale.cli.inputs import add_selection, choice_of, read_all_results, results_path, say
from gpuscale.judge.baseline import MINIMUM_RUNS, TOO_WEAK, baseline_from_results, entries_of
from gpuscale.judge.compare.notes import outlying_nights
from gpuscale.judge.sides import side_of_baseline
from gpuscale.records import Baseline, Hardware, Results, Tolerances
from gpuscale.records.baseline import Source
from gpuscale.records.environment_diff import listed
from gpuscale.records.record import NAME_LIMIT
from gpuscale.records.run import were_hosts_busy
from gpuscale.reports.comparison.next_step import about, at_other_times, further, measuring
from gpuscale.reports.phrases import FOUND, busy_text, runs_text
from gpuscale.reports.reason_words import statement_text
from gpuscale.reports.screen import PLAIN_COLUMNS, labelled_lines
from gpuscale.store.files import make_folder, write_baseline
from gpuscale.store.imports.session import Session, add_directions, published
from gpuscale.store.imports.sources import SOURCES

_TABLE = "table"
_MOST_RUNS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Make a baseline, show it, and keep it true."
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_record(actions.add_parser("record", help="make a baseline from measured results"))
    text = "print what a baseline holds, and where it comes from"
    show.add_arguments(actions.add_parser("show", help=text))
    text = "replace or add results, after approval of each change"
    baseline_update.add_arguments(actions.add_parser("update", help=text))
    _add_import(actions.add_parser("import", help="make a baseline from a table kept by hand"))


def run(arguments: argparse.Namespace) -> int:
    runs = {"record": _record, "show": show.run, "update": baseline_update.run, "import": _import}
    return runs[arguments.action](arguments)


def _add_record(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        f"Make a baseline from measured results: at least {MINIMUM_RUNS} runs of each entry; "
        "six or more find smaller losses."
    )
    add = parser.add_argument
    add("results", metavar="RESULTS", type=results_path, nargs="+", help="results files")
    _add_output(parser)
    add_selection(parser, "take")
    text = f"write the baseline even if it finds no loss below {rough_percent(TOO_WEAK)}%"
    add("--weak", action="store_true", help=text)


def _record(arguments: argparse.Namespace) -> int:
    results = read_all_results(arguments.results)
    baseline = baseline_from_results(
        results, name=arguments.output.stem, cluster=arguments.cluster, choice=choice_of(arguments)
    )
    baseline = replace(baseline, recorded_by=baseline_update.login_name())
    sizes, entries = baseline_update.night_sizes(baseline), entries_of(baseline.runs)
    losses = baseline_update.smallest_losses(baseline, sizes)
    for note in outlying_nights((entry, None) for entry in side_of_baseline(baseline).entries):
        text = statement_text(note, baseline.hardware.device)
        say(f"note: {text}; if a fault explains it: gpuscale leave-out FILE --because TEXT")
    if not arguments.weak and (large := [f"  {each}" for each in losses if each.loss > TOO_WEAK]):
        steps = _to_strengthen(arguments, baseline, results, losses[0].loss / TOO_WEAK)
        least = rough_percent(TOO_WEAK)
        what = f"nothing was written: losses from {least} on are to be {FOUND}; here only:"
        raise UsageError("\n".join([what, *large, *labelled_lines(steps, PLAIN_COLUMNS)]))
    make_folder(arguments.output.parent)
    write_baseline(arguments.output, baseline)
    say(f"{arguments.output}: {counted(len(entries), 'entry')} from {runs_text(baseline.runs)}")
    say(baseline_update.strength_text(losses, sizes))
    if busy_runs := busy_text(baseline.runs):
        say(f"beware: {busy_runs}")
    baseline_update.say_how_to_extend(arguments.output, baseline, results[-1].started_as)
    return ExitCode.OK


def _to_strengthen(
    arguments: argparse.Namespace, baseline: Baseline, results: Sequence[Results], excess: float
) -> list[tuple[str, str]]:
    """Return (label, text) advice on detecting slowdowns `excess` times as small as now."""
    most = max(map(len, entries_of(baseline.runs).values()))
    # The smallest loss found is proportional to a deviation, which a few runs underestimate.
    fewest, more = (math.ceil(n * most * min(excess, 1 / TOO_WEAK) ** 2) for n in (1, 2))
    sessions = len({run.allocation for run in baseline.runs})
    file, started_as = shlex.quote(visible(str(arguments.results[-1]))), results[-1].started_as
    takes = about((more / most - 1) * sum(run.wall_s or 0.0 for run in baseline.runs))
    how = f"make {more} runs a row ({takes}; {fewest} may do)"
    options = f"--runs {more} --resume {file}"
    files = again = joined(visible(f"{path}") for path in arguments.results)
    option, pattern = further(visible(f"{arguments.results[0]}"))
    if is_busy := were_hosts_busy(baseline.runs):
        # Further runs would not take the busy ones out of the file.
        how, options = f"{busy_text(baseline.runs)}; measure into a new file", option
        again = pattern
    elif sessions > 1 or more > _MOST_RUNS or baseline.hardware.device == "cpu":
        # On CPU ranks, sessions are taken to differ as runs do, so more of one tell little.
        runs = max(baseline_update.night_sizes(baseline).values())
        how, options = f"measure {at_other_times(sessions)}", f"--runs {runs} {option}"
        others = [path for path in arguments.results if not path.match(pattern)]
        again = f"{joined(visible(f'{path}') for path in others)} {pattern}".strip()
    how += ", while nothing else runs"
    words = [word for word in arguments.command_line[2:] if Path(word) not in arguments.results]
    record, given = "gpuscale baseline record", joined(words)
    stronger = [("run", measuring(started_as, options)), ("then", "record again")]
    stronger += [("run", f"{record} {again} {given}")]
    as_it_is, weak = "take it as it is", [("run", f"{record} {files} {given} --weak")]
    if sessions >= MINIMUM_ALLOCATIONS and not is_busy:
        as_it_is += f": {sessions} sessions show how they differ, so further ones help slowly"
        return [("next", as_it_is), *weak, ("or", how), *stronger]
    return [("next", how), *stronger, ("or", as_it_is), *weak]


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Make a baseline from a table of published figures, as CSV or Markdown, with a column of "
        "GPUs ('gpus' or 'n') and one of times or throughput (docs/baselines.md), or from the "
        "references in reports of ReFrame, each judged by its own thresholds."
    )
    add = parser.add_argument
    text = "a .csv or .md file; or 'reframe' and its reports, its logs, or folders of them"
    add("files", metavar="TABLE", nargs="+", help=text)
    _add_output(parser)
    text = "origin of the figures, kept in the baseline (default: the names of the files)"
    add("--source", dest="title", metavar="TEXT", help=text)
    add("--device", choices=DEVICES, default="cuda", help="default: cuda")
    add("--gpu-name", metavar="NAME", help="the model of the GPUs, such as V100")
    add("--cpu-model", metavar="NAME", help="the model of the CPUs")
    add_recorded(parser)


def _import(arguments: argparse.Namespace) -> int:
    tool, *files = arguments.files
    if tool not in SOURCES or not files:
        tool, files = _TABLE, arguments.files
    sessions = _sessions(tool, files, arguments)
    if not (values := [value for each in sessions for value in each.values if value.published]):
        problem = f"no value has a reference; 'gpuscale import {tool}' makes nights of them"
        raise UsageError(f"{listed(files, 3)}: {problem}")
    more_is_better = {name: way == "more" for name, way in arguments.better or ()}
    add_directions(more_is_better, values)
    found = [published(value, more_is_better) for value in values]
    figures = {figure.key: (figure, limit) for figure, limit in found}
    limits = tuple(limit for _, limit in figures.values() if limit is not None)
    try:
        baseline = Baseline(
            name=arguments.output.stem,
            cluster=arguments.cluster,
            hardware=Hardware(
                device=arguments.device if tool == _TABLE else UNRECORDED,
                gpu_name=arguments.gpu_name,
                gpus_per_node=arguments.gpus_per_node,
                cpu_model=arguments.cpu_model,
                system=None if tool == _TABLE else sessions[-1].system,
            ),
            published=tuple(figure for figure, _ in figures.values()),
            tolerances=Tolerances(overrides=limits),
            source=Source(title=arguments.title or f"{tool}: {listed(files, 3)}"[:NAME_LIMIT]),
        )
    except ValueError as refusal:
        raise UsageError(str(refusal)) from None
    make_folder(arguments.output.parent)
    write_baseline(arguments.output, baseline)
    judged = f", {len(limits)} of them judged by their own thresholds" if limits else ""
    say(f"{arguments.output}: {counted(len(figures), 'published figure')}{judged}")
    for text in dict.fromkeys(text for each in sessions for text in each.without_value):
        say(f"note: left out {escaped(text)}")
    return ExitCode.OK


def _sessions(tool: str, files: Sequence[str], arguments: argparse.Namespace) -> list[Session]:
    paths = paths_of(files, SOURCES[tool])
    if tool == _TABLE and len(paths) > 1:
        raise UsageError("baseline import: give a single table, or 'reframe' and its reports")
    defaults = defaults_of(arguments, arguments.system or arguments.cluster)
    read = sessions_in(paths, SOURCES[tool], defaults, alone=len(paths) == 1)
    found = [each for _, sessions in read for each in sessions]
    found = [each for each in found if arguments.system in (None, each.system)]
    if len(systems := {each.system for each in found if each.system}) > 1:
        found_systems = ", ".join(sorted(systems))
        raise UsageError(f"the files are of several systems ({found_systems}); choose by --system")
    return sorted(found, key=lambda session: session.began_s)


def _add_output(parser: argparse.ArgumentParser) -> None:
    text = "the baseline file to write"
    parser.add_argument("-o", "--output", metavar="FILE", type=_new_file, required=True, help=text)
    parser.add_argument("--cluster", required=True, help="the machine's name, such as 'ARC4'")


def _new_file(text: str) -> Path:
    if (output := Path(text)).exists():
        problem = "exists already; choose another name, or change it: gpuscale baseline update"
        raise FileError(output, problem)
    return output
