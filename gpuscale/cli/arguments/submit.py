"""The arguments of `gpuscale submit`."""

from gpuscale.cli.arguments.commands import Commands


def add_submit(commands: Commands) -> None:
    """Add `gpuscale submit`."""
    submit = commands.add_parser(
        "submit",
        help="measure and judge in a job of this cluster's scheduler",
        description=(
            "Write the job script of a cluster, say what the job will cost, and hand it to sbatch, "
            "qsub or bsub. Run it from the root of a checkout."
        ),
        epilog=(
            "Exit codes: with --wait that of the night (docs/nightly.md), and for a job that Slurm "
            "ended 5 (its time was up) or 6 (a node of it failed); else 0 submitted or printed, "
            "2 not submitted."
        ),
    )
    submit.add_argument(
        "profile",
        metavar="PROFILE",
        nargs="?",
        help="such as juwels-booster, or a file such as ./mysite.toml (default: the one that "
        "recognises this machine)",
    )
    add = submit.add_argument
    add("--gpus", metavar="N,N,…", help="measure on these numbers of GPUs (default: the profile's)")
    add("--runs", metavar="R", type=int, help="fresh starts of each (default: the profile's)")
    add("--baseline", metavar="FILE", help="what to judge against (default: the profile's)")
    add("--partition", metavar="P", help="partition or queue (default: the profile's)")
    add("--account", metavar="A", help="account or project (default: the profile's)")
    add("--time", metavar="HH:MM:SS", help="time limit of the job (default: the profile's)")
    add("--modules", metavar="'M M …'", help="modules to load (default: the profile's)")
    add(
        "--gpus-per-node",
        metavar="N",
        type=int,
        help="for profiles that do not know it, such as generic-slurm",
    )
    add("--print", action="store_true", help="print the script and submit nothing")
    add("--wait", action="store_true", help="follow the job and end with its exit code")
    add("--yes", action="store_true", help="do not ask before submitting")
    submit.set_defaults(run="gpuscale.cli.submit:run_submit")
