"""Where a comparison goes, and in which formats: `--format FORMAT[=FILE]`."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuscale.errors import FileError, UsageError
from gpuscale.printable import visible
from gpuscale.records import Comparison, Results
from gpuscale.report.colour import Palette, wants_colour
from gpuscale.report.injection_text import injections_of
from gpuscale.report.wrapping import PLAIN_WIDTH, width_of
from gpuscale.store import write_report

FORMATS = ("text", "json", "markdown", "junit", "github")


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One rendering of the verdict."""

    format: str
    path: Path | None
    """None is standard output."""


def outputs_of(options: Sequence[str] | None) -> tuple[Output, ...]:
    """What `--format` asks for; exactly one output goes to standard output, text by default.

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


def write_outputs(
    outputs: Iterable[Output], comparison: Comparison, results: Sequence[Results]
) -> None:
    """Renders one verdict in every format that was asked for.

    Raises:
        FileError: a file could not be written; all other outputs were.
    """
    problems: list[FileError] = []
    printed = ""
    for output in outputs:
        if output.path is None:
            palette = Palette(colour=wants_colour(sys.stdout))
            printed = _rendered(output, comparison, results, palette, width_of(sys.stdout))
            continue
        plain = Palette(colour=False)
        try:
            write_report(output.path, _rendered(output, comparison, results, plain, PLAIN_WIDTH))
        except FileError as problem:
            problems.append(problem)
    # Last, since a reader such as `head` may close the pipe; the files are written then.
    sys.stdout.write(printed)
    if problems:
        raise problems[0]


def _rendered(
    output: Output, comparison: Comparison, results: Sequence[Results], palette: Palette, width: int
) -> str:
    """The whole text of an output; each renderer is imported only when it is asked for."""
    injections = injections_of(results)
    if output.format == "json":
        from gpuscale.report.comparison_json import comparison_json

        text = comparison_json(comparison, injections)
    elif output.format == "markdown":
        from gpuscale.report.comparison_markdown import comparison_markdown

        text = comparison_markdown(comparison, injections)
    elif output.format == "junit":
        from gpuscale.report.comparison_junit import comparison_junit

        text = comparison_junit(comparison, results)
    elif output.format == "github":
        from gpuscale.report.comparison_github import comparison_github

        text = comparison_github(comparison, injections)
    else:
        from gpuscale.report.comparison_text import comparison_text

        text = comparison_text(comparison, palette, injections, width=width)
    return f"{text}\n"


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
