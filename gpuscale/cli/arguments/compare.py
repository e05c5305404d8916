"""The arguments of `gpuscale compare`."""

from gpuscale.cli.arguments.commands import Commands


def add_compare(commands: Commands) -> None:
    """Add `gpuscale compare`."""
    compare = commands.add_parser(
        "compare",
        help="judge results against a baseline",
        description="Judge results against a baseline.",
        epilog=(
            "Exit codes: 0 ok or improved, 1 regressed, 2 usage or unreadable input, "
            "3 not shown to be fine: inconclusive, or a row that only one side has, failed or "
            "cannot be compared, 4 nothing comparable was measured."
        ),
    )
    compare.add_argument("baseline", metavar="BASELINE", help="such as baselines/arc4.json")
    compare.add_argument(
        "results",
        metavar="RESULTS",
        nargs="*",
        # Without a default argparse calls them required.
        default=(),
        help="results files of one machine (default: the newest in .gpuscale/results)",
    )
    compare.add_argument(
        "--gpus", metavar="N,N,…", help="judge only these numbers of GPUs (default: all)"
    )
    compare.add_argument(
        "--case",
        metavar="CASE[/STRATEGY]",
        action="append",
        help="judge only this case; may be given several times (default: all)",
    )
    compare.add_argument(
        "--format",
        metavar="FORMAT[=FILE]",
        action="append",
        help=(
            "text, json, markdown, junit or github, to standard output or into a file; may be "
            "given several times, such as --format junit=report.xml --format markdown=comment.md "
            "(default: text to standard output, also beside files)"
        ),
    )
    compare.set_defaults(run="gpuscale.cli.compare:run_compare")
