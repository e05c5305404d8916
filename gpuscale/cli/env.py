"""`gpuscale env`: show the software of measurements, or what differs between two of them."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuscale.base.errors import ExitCode, UsageError
from gpuscale.cli.inputs import add_text_or_json, is_folder, read_content, say
from gpuscale.cli.nights import read_nights
from gpuscale.records import Environment, EnvironmentChange, NodeEvidence, Results
from gpuscale.records.environment_diff import (
    ENVIRONMENT_FIELDS,
    environment_changes,
    environment_text,
    is_of_stack,
    listed,
    package_changes,
    stack_rank,
)
from gpuscale.records.evidence import Library, merged
from gpuscale.records.record import document_text
from gpuscale.records.run import nodes_of
from gpuscale.reports.phrases import counted

Changes = list[EnvironmentChange]
MeasuredWith = tuple[Sequence[Environment], Sequence[NodeEvidence]]
"""The software environments of a measurement, and the evidence recorded about its nodes."""
_BUILT_WITH = {"NCCL": "nccl_version", "RCCL": "rccl_version", "CUDA runtime": "cuda_version"}
"""Environment fields with library versions that torch was built with, keyed by library."""
_ALIKE = "no difference in what is recorded (not all environment variables: docs/format.md)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show the software of a measurement (results, a baseline, or a folder of nights), or what "
        "differs between two of them. A difference is not by itself the cause of a loss."
    )
    text = "one measurement, or the word diff and two measurements"
    parser.add_argument("files", metavar="FILE | diff A B", nargs="+", help=text)
    add_text_or_json(parser)


def run(arguments: argparse.Namespace) -> int:
    is_diff, is_json = arguments.files[0] == "diff", arguments.format == "json"
    paths = [Path(name) for name in arguments.files[is_diff:]]
    if len(paths) != 1 + is_diff:
        raise UsageError("env: give one file or folder, or 'diff' and two of them")
    sides = [_measured_with(path) for path in paths]
    if is_diff:
        changes, packages = changes_between(*sides)
        text = changes_text(changes, packages)
        if is_json:
            text = document_text("gpuscale-env-diff", changes=changes, packages=packages)
    else:
        ((environments, nodes),) = sides
        libraries = merged(library for node in nodes for library in node.libraries)
        text = software_text(environments, nodes, libraries)
        if is_json:
            text = document_text("gpuscale-env", environments=environments, libraries=libraries)
    say(text)
    return ExitCode.OK


def _measured_with(path: Path) -> MeasuredWith:
    if is_folder(path):
        nights = [night for night in read_nights([path]) if night.left_out is None]
        runs = [run for night in nights for run in night.runs]
        return [night.environment for night in nights], nodes_of(runs)
    content = read_content(path)
    found = [content.environment] if isinstance(content, Results) else content.environments.values()
    return [*found], nodes_of(content.runs)


def changes_between(before: MeasuredWith, after: MeasuredWith) -> tuple[Changes, Changes]:
    """Return two lists: changes of the environment, and of packages, most important first.

    A package that is also a field of the environment, such as torch, is only in the first list.
    """
    sides = before[0], after[0]
    found = environment_changes(*sides, before[1], after[1])
    names = {change.name.removesuffix("_version") for change in found}
    packages = [change for change in package_changes(*sides) if change.name not in names]
    return sorted(found, key=lambda change: stack_rank(change.name)), packages


def changes_text(changes: Changes, packages: Changes) -> str:
    """Return a text that lists the changes; packages of unknown importance are only counted."""
    named = [change for change in packages if is_of_stack(change.name)]
    found = sorted([*changes, *named], key=lambda change: stack_rank(change.name))
    lines = [environment_text(change) for change in found]
    return "\n".join([*lines, *_more(len(packages) - len(named))]) or _ALIKE


def software_text(
    environments: Sequence[Environment], nodes: Sequence[NodeEvidence], libraries: Sequence[Library]
) -> str:
    """Return a line for each version, library and package, listing all values if they differ."""
    lines = []
    for field in ENVIRONMENT_FIELDS:
        values = [field.value(environment) for environment in environments]
        if field.words and (known := [str(value) for value in values if value is not None]):
            lines.append(f"{field.words} {listed([*dict.fromkeys(known)])}")
    scripts = {(name, digest) for one in environments for name, digest in one.scripts.items()}
    lines += [f"script {name} {digest}" for name, digest in sorted(scripts)]
    lines += [_library_text(library, environments) for library in libraries]
    versions: dict[str, dict[str, None]] = {}
    for environment in environments:
        for name, version in environment.packages.items():
            versions.setdefault(name, {})[version] = None
    named = [name for name in versions if is_of_stack(name)]
    named.sort(key=lambda name: (stack_rank(name), name))
    lines += [f"package {name} {listed([*versions[name]])}" for name in named]
    absent = {one.packages_absent for one in environments} - {None}
    absent |= {node.absent.get("libraries") for node in nodes} - {None}
    lines += [f"unknown: {reason}" for reason in sorted(map(str, absent))]
    return "\n".join([*lines, *_more(len(versions) - len(named))])


def _library_text(library: Library, environments: Sequence[Environment]) -> str:
    """Describe a library: `NCCL 2.28.3 (loaded from /opt/nccl.so; torch was built with 2.27.7)`."""
    field = _BUILT_WITH.get(library.name)
    built = {getattr(one, field) for one in environments} - {None} if field else set()
    other = ", ".join(sorted(built - {library.version})) if library.version else ""
    built_with = f"; torch was built with {other}" if other else ""
    return f"{library.name} {library.label} (loaded from {library.path}{built_with})"


def _more(count: int) -> Iterator[str]:
    if count:
        yield f"and {counted(count, 'more package')}; --format json lists them"
