"""The arguments of `gpuscale show`."""

from gpuscale.cli.arguments.commands import Commands


def add_show(commands: Commands) -> None:
    """Add `gpuscale show`."""
    show = commands.add_parser(
        "show",
        help="print a results or baseline file as a table",
        description="Print a results or baseline file as a table.",
    )
    show.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="results or baseline file (default: the newest in .gpuscale/results)",
    )
    show.add_argument(
        "--phases",
        action="store_true",
        help="where the time of a step goes, phase by phase, instead of the scaling table",
    )
    show.set_defaults(run="gpuscale.cli.show:run_show")
