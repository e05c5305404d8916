"""The arguments of `gpuscale selftest`."""

from gpuscale.cli.arguments.commands import Commands


def add_selftest(commands: Commands) -> None:
    """Add `gpuscale selftest`."""
    selftest = commands.add_parser(
        "selftest",
        help="try gpuscale itself on this machine: overhead, false alarms, faults found",
        description=(
            "Try gpuscale itself. Without --overhead or --simulate: identical measurements on "
            "this machine must raise no alarm, faults made on purpose must be found, and then "
            "the overhead is measured as with --overhead."
        ),
        epilog=(
            "Exit codes: 0 gpuscale holds what it says, 1 it does not, 2 usage, 3 not decided, "
            "4 nothing could be judged."
        ),
    )
    # Each of them names what runs in the place of the default.
    modes = selftest.add_mutually_exclusive_group()
    modes.add_argument(
        "--overhead",
        action="store_const",
        dest="run",
        const="gpuscale.cli.selftest:run_overhead",
        help="only what measuring costs: gpuscale's windows in turn with a bare training loop",
    )
    modes.add_argument(
        "--simulate",
        action="store_const",
        dest="run",
        const="gpuscale.cli.simulation:run_simulation",
        help="false alarms and losses found in seeded random runs, without measuring anything",
    )
    machine = selftest.add_argument_group("on this machine")
    machine.add_argument(
        "--case",
        metavar="FILE::CLASS",
        help="the case to train (default: ResNet-50 of bench_cases on GPUs, mnist_cnn on CPU)",
    )
    machine.add_argument(
        "--gpus", metavar="N,N,…", help="numbers of GPUs, or of CPU ranks (default: 1,2)"
    )
    machine.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="auto (default: CUDA where there is one), cuda or cpu",
    )
    machine.add_argument(
        "--runs",
        metavar="N",
        type=int,
        default=8,
        help="of the overhead: fresh starts on each number of GPUs (default: 8)",
    )
    machine.add_argument(
        "--pairs",
        metavar="N",
        type=int,
        default=10,
        help="identical measurements that are compared with those before them (default: 10)",
    )
    machine.add_argument(
        "--trials",
        metavar="N",
        type=int,
        default=5,
        help="of each fault at each size (default: 5)",
    )
    simulation = selftest.add_argument_group("with --simulate")
    simulation.add_argument(
        "--comparisons",
        metavar="N",
        type=int,
        default=10_000,
        help="nights without a loss (default: 10000); as many with one come on top",
    )
    simulation.add_argument(
        "--seed", metavar="N", type=int, default=1, help="of the random numbers (default: 1)"
    )
    simulation.add_argument(
        "--validation",
        metavar="PAGE.md",
        help="also set gpuscale's rule beside usual ones, and write all to this page, with a "
        "picture beside it",
    )
    selftest.add_argument(
        "--format", choices=("text", "json"), default="text", help="text (default) or json"
    )
    selftest.set_defaults(run="gpuscale.cli.selftest:run_trials")
