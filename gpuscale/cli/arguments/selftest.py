"""The arguments of `gpuscale selftest`."""

from gpuscale.cli.arguments.commands import Commands


def add_selftest(commands: Commands) -> None:
    """Add `gpuscale selftest`."""
    selftest = commands.add_parser(
        "selftest",
        help="try gpuscale itself on this machine: overhead, false alarms, faults found",
        description=(
            "Try gpuscale itself. Without --overhead: identical measurements on this machine must "
            "raise no alarm, faults made on purpose must be found, and then the overhead is "
            "measured as with --overhead."
        ),
        epilog=(
            "Exit codes: 0 gpuscale holds what it says, 1 it does not, 2 usage, 3 not decided, "
            "4 nothing could be judged."
        ),
    )
    selftest.add_argument(
        "--overhead",
        action="store_true",
        help="only what measuring costs: gpuscale's windows in turn with a bare training loop",
    )
    selftest.add_argument(
        "--case",
        metavar="FILE::CLASS",
        help="the case to train (default: ResNet-50 of bench_cases on GPUs, mnist_cnn on CPU)",
    )
    selftest.add_argument(
        "--gpus", metavar="N,N,…", help="numbers of GPUs, or of CPU ranks (default: 1,2)"
    )
    selftest.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="auto (default: CUDA where there is one), cuda or cpu",
    )
    selftest.add_argument(
        "--runs",
        metavar="N",
        type=int,
        default=8,
        help="of the overhead: fresh starts on each number of GPUs (default: 8)",
    )
    selftest.add_argument(
        "--pairs",
        metavar="N",
        type=int,
        default=10,
        help="identical measurements that are compared with those before them (default: 10)",
    )
    selftest.add_argument(
        "--trials",
        metavar="N",
        type=int,
        default=5,
        help="of each fault at each size (default: 5)",
    )
    selftest.add_argument(
        "--format", choices=("text", "json"), default="text", help="text (default) or json"
    )
    selftest.set_defaults(run="gpuscale.cli.selftest:run")
