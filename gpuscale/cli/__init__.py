"""The `gpuscale` command: parses, dispatches, and turns expected failures into one line."""

import argparse
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TextIO

from gpuscale.cli.arguments.baseline import add_baseline
from gpuscale.cli.arguments.compare import add_compare
from gpuscale.cli.arguments.doctor import add_doctor
from gpuscale.cli.arguments.night import add_night
from gpuscale.cli.arguments.selftest import add_selftest
from gpuscale.cli.arguments.show import add_show
from gpuscale.cli.arguments.submit import add_submit
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
    module, function = parsed.run.split(":")
    run: Callable[[argparse.Namespace], int] = getattr(import_module(module), function)
    return run(parsed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpuscale",
        description="Does multi-GPU training on this machine still scale as it did?",
        epilog="Measure with pytest: pytest bench_cases --gpus 1,2,4",
    )
    parser.add_argument("--version", action="version", version=f"gpuscale {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_compare(commands)
    add_show(commands)
    add_baseline(commands)
    add_doctor(commands)
    add_submit(commands)
    add_night(commands)
    add_selftest(commands)
    return parser
