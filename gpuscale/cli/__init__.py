"""The `gpuscale` command: parse the command line, run a command, and print errors on one line.

A command is a module with `add_arguments(parser)` and `run(arguments)`, which returns the exit code
for the process; `_COMMANDS` lists all commands. Only the module of the named command is
imported, so that `gpuscale --help` is fast.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from keyword import iskeyword
from typing import Any, TextIO

from gpuscale import __version__
from gpuscale.base import errors
from gpuscale.base.text import no_such, spell_out, suggestion, visible

# Name and help of each command, in the order of `gpuscale --help`.
_COMMANDS = (
    ("init", "write the shipped cases, and a profile for this cluster's scheduler"),
    ("run", "measure an unchanged training script"),
    ("bisect", "find which package, variable or commit makes training slower"),
    ("compare", "judge results against a baseline"),
    ("show", "print a results or baseline file as a table"),
    ("env", "show the software of measurements, or what differs between two of them"),
    ("report", "write one HTML page of results: verdict, rows, GPUs, nights and machines"),
    ("plot", "draw results, a baseline or nights as a picture"),
    ("history", "show when rows changed over the nights, and what else changed then"),
    ("import", "make nights of what ReFrame and other tools have recorded"),
    ("leave-out", "exclude a bad night from comparisons, or include it again"),
    ("baseline", "make a baseline, show it, and keep it true"),
    ("doctor", "examine this machine's GPUs: telemetry, links and faults"),
    ("probe", "measure each device, link and storage of a job for a minute, to confirm a cause"),
    ("batch", "find the largest batch of a case that fits into memory"),
    ("submit", "measure and judge in a job of this cluster's scheduler"),
    ("fleet", "measure every node of a cluster, and name the sick ones"),
    ("night", "measure, compare and keep, inside a running job (submit writes such jobs)"),
    ("schema", "print the JSON Schema of results or baselines"),
)
# Packages that a command needs besides `READING`; a login node may lack them.
_NEEDS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("run", "bisect", "batch", "night", "probe"), errors.MEASURING),
    "fleet": ("ClusterShell",),
    "report": ("matplotlib", "jinja2"),
    "plot": ("matplotlib",),
    "doctor": ("pynvml",),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in `arguments` (None: `sys.argv[1:]`); return the process's exit code."""
    if sys.stdout is None or sys.stderr is None:
        # The streams were closed before the start, so the verdict would be lost.
        if sys.stderr is not None:
            _say("gpuscale: standard output is closed; open it, such as by >FILE")
        return errors.ExitCode.USAGE
    spell_out(sys.stdout, sys.stderr)
    try:
        words = sys.argv[1:] if arguments is None else [*arguments]
        if words[:1] == ["help"]:
            words = [*words[1:], "--help"]
        # Parsing imports the command's module, which may fail.
        parsed = parser_of_commands().parse_args(words, argparse.Namespace(command_line=words))
        code: int = import_module(parsed.run).run(parsed)
        sys.stdout.flush()
        return code
    except errors.GpuscaleError as error:
        _say(f"gpuscale: {error}")
        return errors.ExitCode.USAGE
    except BrokenPipeError:
        # As in `gpuscale show … | head`: the reader has closed the pipe.
        _silence(sys.stdout)
        return 128 + 13
    except OSError as error:
        _silence(sys.stdout)
        _say(f"gpuscale: cannot write the output: {error.strerror}")
        return errors.ExitCode.USAGE
    except KeyboardInterrupt:
        return 128 + 2
    except errors.RunTerminated as error:
        return 128 + error.number
    except Exception:
        # Python's own exit code for a crash is 1, which here means "regressed".
        _say(f"{traceback.format_exc()}gpuscale: this is a bug; please report the lines above")
        return errors.ExitCode.USAGE


def _say(text: str) -> None:
    """Print to standard error; ignore write errors, so that they do not change the exit code."""
    try:
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - a command line prints
    except OSError:
        _silence(sys.stderr)


def _silence(stream: TextIO) -> None:
    """Discard the buffered output of a broken stream, so that flushing it at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _Parser(argparse.ArgumentParser):
    """Argument parser that imports the module of a command only when the command is used."""

    module: str | None = None

    def parse_known_args(self, *arguments: Any, **keywords: Any) -> Any:
        """Add the arguments that the command's module defines, then parse the command line."""
        if self.module is not None:
            command = self.module.rpartition(".")[2]
            errors.require_packages(command, (*errors.READING, *_NEEDS.get(command, ())))
            import_module(self.module).add_arguments(self)
            self.set_defaults(run=self.module)
            self.module = None
        parsed, unknown = super().parse_known_args(*arguments, **keywords)
        if unknown:
            near = suggestion(unknown[0].partition("=")[0], self._option_string_actions, 0.7)
            # Otherwise the main parser would print this error with the wrong usage.
            self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise UsageError for an unknown command or choice; suggest the closest known one."""
        if action.choices is None or value in action.choices:
            return
        if action.nargs == argparse.PARSER:
            command = f"{self.prog} {visible(value)}".removeprefix("gpuscale ")
            problem = f"there is no command '{command}'{suggestion(value, action.choices)}"
            raise errors.UsageError(f"{problem}; '{self.prog} --help' lists all")
        option = "/".join(action.option_strings) or action.metavar or action.dest
        raise errors.UsageError(f"{option}: {no_such(value, action.choices)}")


def parser_of_commands() -> argparse.ArgumentParser:
    """Return the parser for all commands; a command's module is imported only when needed."""
    parser = _Parser(
        prog="gpuscale",
        description="Does multi-GPU training on this machine still scale as it did?",
        epilog="Measure with pytest: pytest bench_cases --gpus 1,2,4",
    )
    parser.add_argument("--version", action="version", version=f"gpuscale {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in _COMMANDS:
        # A Python keyword, such as `import`, cannot be the name of a module.
        module = f"{name.replace('-', '_')}{'_' * iskeyword(name)}"
        commands.add_parser(name, help=summary).module = f"gpuscale.cli.{module}"
    return parser
