"""Where a comparison goes, and in which formats: `--format FORMAT[=FILE]`."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from gpuscale.errors import FileError, UsageError
from gpuscale.printable import visible
from gpuscale.report import FORMATS
from gpuscale.report.screen import Screen
from gpuscale.report.view import View
from gpuscale.store import write_report


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One rendering of the verdict."""

    format: str
    path: Path | None
    """None is standard output."""


def outputs_of(options: Sequence[str] | None) -> tuple[Output, ...]:
    """The outputs of `--format`; exactly one goes to standard output, text by default.

    Raises:
        UsageError: a format that does not exist, or two outputs for one place.
    """
    outputs = [_output(option) for option in options or ()]
    printed = [output for output in outputs if output.path is None]
    if len(printed) > 1:
        first, second = printed[0].format, printed[1].format
        raise UsageError(
            f"--format: {first} and {second} cannot both go to standard output; "
            f"give one a file, such as {second}=FILE"
        )
    paths = [output.path for output in outputs if output.path is not None]
    for number, path in enumerate(paths):
        if any(_is_same(path, other) for other in paths[:number]):
            raise UsageError(f"--format: two outputs for {_shown(path)}; give each its own file")
    return (*([] if printed else [Output(format="text", path=None)]), *outputs)


def spare_inputs(outputs: Iterable[Output], inputs: Sequence[Path]) -> None:
    """Refuses an output that would take the place of an input.

    Raises:
        UsageError: an output is the baseline or a results file.
    """
    for output in outputs:
        if output.path is not None and any(_is_same(output.path, path) for path in inputs):
            raise UsageError(
                f"--format: {_shown(output.path)} is an input of this comparison and is not "
                "overwritten; choose another file"
            )


def write_outputs(outputs: Iterable[Output], view: View) -> None:
    """Renders one verdict in every format that was asked for.

    Raises:
        FileError: a file could not be written; all other outputs were.
    """
    problems: list[FileError] = []
    printed = ""
    for output in outputs:
        if output.path is None:
            printed = _rendered(output, replace(view, screen=Screen.of(sys.stdout)))
            continue
        try:
            write_report(output.path, _rendered(output, view))
        except FileError as problem:
            problems.append(problem)
    # Last, since a reader such as `head` may close the pipe; the files are written then.
    sys.stdout.write(printed)
    if problems:
        raise problems[0]


def _rendered(output: Output, view: View) -> str:
    """The whole text of an output; each format is imported only when it is asked for."""
    render: Callable[[View], str] = import_module(f"gpuscale.report.{output.format}").render
    return f"{render(view)}\n"


def _output(option: str) -> Output:
    name, separator, path = option.partition("=")
    if name not in FORMATS:
        raise UsageError(f"--format: '{visible(name)}' is not one of {', '.join(FORMATS)}")
    if separator and not path:
        raise UsageError(f"--format: no file after '{name}='; give {name} or {name}=FILE")
    return Output(format=name, path=Path(path) if separator else None)


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except (OSError, ValueError):
        # At least one is not there yet.
        return path.absolute() == other.absolute()


def _shown(path: Path) -> str:
    return visible(str(path))
