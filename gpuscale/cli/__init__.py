"""The `gpuscale` command: parses, dispatches, and turns expected failures into one line."""

import argparse
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TextIO

from gpuscale.errors import ExitCode, GpuscaleError
from gpuscale.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code of the process."""
    if sys.stdout is None or sys.stderr is None:
        # Started with closed streams: nobody would see the verdict.
        return ExitCode.USAGE
    for stream in (sys.stdout, sys.stderr):
        # A terminal without arrows gets question marks instead of a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    parsed = _parser().parse_args(arguments)
    try:
        # Each command imports what it needs: `gpuscale --help` is typed often.
        code = _dispatch(parsed)
        sys.stdout.flush()
        return code
    except GpuscaleError as error:
        print(f"gpuscale: {error}", file=sys.stderr)  # noqa: T201 - a command line prints
        return ExitCode.USAGE
    except BrokenPipeError:
        # `gpuscale show … | head`: the reader has seen enough.
        _silence(sys.stdout)
        return 128 + 13
    except OSError as error:
        _silence(sys.stdout)
        print(f"gpuscale: cannot write the output: {error.strerror}", file=sys.stderr)  # noqa: T201
        return ExitCode.USAGE
    except KeyboardInterrupt:
        return 128 + 2
    except Exception:
        # Python's own exit code for a crash is 1, which here means "regressed".
        traceback.print_exc()
        print("gpuscale: this is a bug; please report the lines above", file=sys.stderr)  # noqa: T201
        return ExitCode.USAGE


def _silence(stream: TextIO) -> None:
    """Let what is still buffered go nowhere; Python would complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _dispatch(parsed: argparse.Namespace) -> int:
    if parsed.command == "compare":
        from gpuscale.cli.compare import run_compare

        return run_compare(parsed)
    if parsed.command == "show":
        from gpuscale.cli.show import run_show

        return run_show(parsed)
    if parsed.command == "doctor":
        from gpuscale.cli.doctor import run_doctor

        return run_doctor(parsed)
    from gpuscale.cli.baseline import run_baseline_record

    return run_baseline_record(parsed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpuscale",
        description="Does multi-GPU training on this machine still scale as it did?",
        epilog="Measure with pytest: pytest bench_cases --gpus 1,2,4",
    )
    parser.add_argument("--version", action="version", version=f"gpuscale {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_compare(commands)
    _add_show(commands)
    _add_baseline(commands)
    _add_doctor(commands)
    return parser


def _add_compare(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    compare = commands.add_parser(
        "compare",
        help="judge results against a baseline",
        description="Judge results against a baseline.",
        epilog=(
            "Exit codes: 0 ok or improved, 1 regressed, 2 usage or unreadable input, "
            "3 inconclusive or incomplete, 4 nothing comparable was measured."
        ),
    )
    compare.add_argument("baseline", metavar="BASELINE", help="such as baselines/arc4.json")
    compare.add_argument(
        "results",
        metavar="RESULTS",
        nargs="*",
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
        "--format", choices=("text", "json"), default="text", help="text (default) or json"
    )


def _add_show(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
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


def _add_baseline(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
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


def _add_doctor(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    doctor = commands.add_parser(
        "doctor",
        help="look at this machine's GPUs: what they offer, and what is wrong with them",
        description=(
            "Look at this machine, GPU by GPU: which telemetry it offers, the state of its links "
            "and memory, and one sentence for each problem."
        ),
        epilog="Exit codes: 0 no problem found or no GPU here, 1 a problem was found.",
    )
    doctor.add_argument(
        "--format", choices=("text", "json"), default="text", help="text (default) or json"
    )
