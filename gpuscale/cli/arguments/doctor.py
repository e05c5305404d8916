"""The arguments of `gpuscale doctor`."""

from gpuscale.cli.arguments.commands import Commands


def add_doctor(commands: Commands) -> None:
    """Add `gpuscale doctor`."""
    doctor = commands.add_parser(
        "doctor",
        help="look at this machine's GPUs: what they offer, and what is wrong with them",
        description=(
            "Look at this machine, GPU by GPU: which telemetry it offers, the state of its links "
            "and memory, and one sentence for each problem."
        ),
        epilog=(
            "Exit codes: 0 no problem found or no GPU here, 1 a problem was found, 2 wrong usage, "
            "or the nodes could not be looked at."
        ),
    )
    doctor.add_argument(
        "--format", choices=("text", "json"), default="text", help="text (default) or json"
    )
    doctor.add_argument(
        "--nodes",
        action="store_true",
        help="look at all nodes of the job: how each computes, how each pair communicates",
    )
    doctor.add_argument(
        "--launcher",
        choices=("slurm", "mpirun"),
        default="slurm",
        help="for --nodes, what reaches them: slurm (default) or mpirun",
    )
    doctor.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="for --nodes: auto (default: CUDA where there is one), cuda or cpu",
    )
    doctor.set_defaults(run="gpuscale.cli.doctor:run_doctor")
