"""The arguments of `gpuscale night`."""

import argparse

from gpuscale.cli.arguments.commands import Commands


def add_night(commands: Commands) -> None:
    """Add `gpuscale night`."""
    night = commands.add_parser(
        "night",
        help="measure, compare and keep, in a job that is running (ci/nightly.sh calls this)",
        usage="gpuscale night NAME JOB measure PYTEST_ARGUMENT... [compare BASELINE [OPTION...]]",
        description=(
            "One night on one machine: measure with pytest, compare with a baseline, keep "
            "everything below .gpuscale/nightly/NAME, and end with one exit code. What fails for "
            "the infrastructure is tried once more, on other nodes if there are any."
        ),
        epilog=(
            "Exit codes: 0 ok or improved, 1 regressed, 2 it could not be run or judged, "
            "3 not shown to be fine: inconclusive, or a row that only one side has, failed or "
            "cannot be compared, 4 nothing comparable was measured, 5 not everything was measured, "
            "6 infrastructure failed."
        ),
    )
    night.add_argument("name", metavar="NAME", help="of the machine, such as arc4")
    night.add_argument("job", metavar="JOB", help="a word for this night, such as the job's number")
    # Everything after them is pytest's or that of `gpuscale compare`.
    night.add_argument(
        "words",
        metavar="measure PYTEST_ARGUMENT...",
        nargs=argparse.REMAINDER,
        help=argparse.SUPPRESS,
    )
    night.set_defaults(run="gpuscale.cli.night:run_night")
