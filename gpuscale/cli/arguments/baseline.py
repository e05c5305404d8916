"""The arguments of `gpuscale baseline`."""

from gpuscale.cli.arguments.commands import Commands


def add_baseline(commands: Commands) -> None:
    """Add `gpuscale baseline`."""
    baseline = commands.add_parser(
        "baseline", help="make a baseline", description="Make a baseline."
    )
    actions = baseline.add_subparsers(dest="action", required=True, metavar="ACTION")
    record = actions.add_parser(
        "record",
        help="make a baseline of measured results",
        description="Make a baseline of measured results: at least 6 runs of each entry.",
    )
    record.add_argument("results", metavar="RESULTS", nargs="+", help="results files")
    record.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="the baseline file to write"
    )
    record.add_argument("--cluster", required=True, help="the machine's name, such as 'ARC4'")
    record.add_argument("--name", help="the baseline's name (default: that of FILE)")
    record.set_defaults(run="gpuscale.cli.baseline:run_baseline_record")
