"""The arguments of `gpuscale baseline`."""

import argparse

from gpuscale.cli.arguments.commands import Commands


def add_baseline(commands: Commands) -> None:
    """Add `gpuscale baseline`."""
    baseline = commands.add_parser(
        "baseline",
        help="make a baseline, show it, and keep it true",
        description="Make a baseline, show it, and keep it true.",
    )
    actions = baseline.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_record(actions)
    _add_show(actions)
    _add_diff(actions)
    _add_update(actions)
    _add_import(actions)


def _add_record(actions: Commands) -> None:
    record = actions.add_parser(
        "record",
        help="make a baseline of measured results",
        description="Make a baseline of measured results: at least 6 runs of each entry.",
    )
    record.add_argument("results", metavar="RESULTS", nargs="+", help="results files")
    _add_output(record)
    record.add_argument(
        "--case",
        metavar="CASE[/STRATEGY]",
        action="append",
        help="take only this case; may be given several times (default: all)",
    )
    record.add_argument(
        "--gpus", metavar="N,N,…", help="take only these numbers of GPUs (default: all)"
    )
    _add_expiry(record)
    record.set_defaults(run="gpuscale.cli.baseline_record:run_baseline_record")


def _add_show(actions: Commands) -> None:
    show = actions.add_parser(
        "show",
        help="print what a baseline holds, and where it comes from",
        description="Print what a baseline holds, and where it comes from.",
    )
    show.add_argument("file", metavar="FILE", help="such as baselines/arc4.json")
    show.set_defaults(run="gpuscale.cli.baseline_show:run_baseline_show")


def _add_diff(actions: Commands) -> None:
    diff = actions.add_parser(
        "diff",
        help="print what differs between two baselines",
        description=(
            "Print what differs between two baselines, entry by entry; measured entries of B are "
            "judged against those of A. The exit code is 0 whatever differs."
        ),
    )
    diff.add_argument("before", metavar="A", help="a baseline")
    diff.add_argument("after", metavar="B", help="another one")
    diff.set_defaults(run="gpuscale.cli.baseline_diff:run_baseline_diff")


def _add_update(actions: Commands) -> None:
    update = actions.add_parser(
        "update",
        help="put new results in place of old ones, each change approved",
        description=(
            "Show what new results would change, and write what is approved: at the terminal, or "
            "with --accept. The old values and the reason are kept in the file's history."
        ),
        epilog=(
            "Exit codes: 0 written as approved, or nothing would change; 2 usage, unreadable "
            "input or another machine; 3 nothing was approved, or not all could be written."
        ),
    )
    update.add_argument("baseline", metavar="BASELINE", help="the baseline file to change")
    update.add_argument("results", metavar="RESULTS", nargs="+", help="results files")
    update.add_argument(
        "--accept",
        metavar="CASE[/STRATEGY][@GPUS]",
        action="append",
        help="approve this change, or 'all'; may be given several times",
    )
    update.add_argument("--reason", metavar="TEXT", help="why, for the file's history")
    _add_expiry(update)
    update.set_defaults(run="gpuscale.cli.baseline_update:run_baseline_update")


def _add_import(actions: Commands) -> None:
    parser = actions.add_parser(
        "import",
        help="make a baseline of a table kept by hand",
        description=(
            "Make a baseline of published figures from a table: a column of GPUs ('gpus' or 'n') "
            "and one of times or throughput, as CSV or in Markdown (docs/baselines.md). The "
            "options say what the table does not."
        ),
    )
    parser.add_argument("table", metavar="TABLE", help="a .csv or .md file")
    _add_output(parser)
    parser.add_argument(
        "--source", metavar="TEXT", required=True, help="where the figures come from"
    )
    parser.add_argument("--url", help="where that can be read")
    parser.add_argument("--published", metavar="DATE", help="when it was published")
    parser.add_argument("--note", metavar="TEXT", help="what a reader must know of the figures")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    parser.add_argument("--gpu-name", metavar="NAME", help="the model of the GPUs, such as V100")
    parser.add_argument("--gpus-per-node", metavar="N", type=int, help="GPUs of each node")
    parser.add_argument("--cpu-model", metavar="NAME", help="the model of the CPUs")
    parser.add_argument("--case", help="the case of rows that do not name theirs")
    parser.add_argument("--strategy", help="their strategy, such as ddp")
    parser.add_argument("--batch-per-gpu", metavar="N", type=int, help="their batch per GPU")
    parser.add_argument(
        "--nodes", metavar="N", type=int, help="their nodes (default: by --gpus-per-node, else 1)"
    )
    parser.add_argument(
        "--timed", choices=("job", "training_loop", "epoch"), help="what the times span"
    )
    parser.add_argument(
        "--discard-first",
        metavar="N",
        type=int,
        default=0,
        help="how many first times of each row the source leaves out (default: 0)",
    )
    parser.set_defaults(run="gpuscale.cli.baseline_import:run_baseline_import")


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="the baseline file to write"
    )
    parser.add_argument("--cluster", required=True, help="the machine's name, such as 'ARC4'")
    parser.add_argument("--name", help="the baseline's name (default: that of FILE)")


def _add_expiry(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--expires", metavar="DATE", help="the last day on which it is valid, such as 2027-05-01"
    )
    parser.add_argument(
        "--expires-after",
        metavar="PERIOD",
        help="the same as days or weeks after the latest results, such as 180d or 26w",
    )
