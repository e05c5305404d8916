"""`gpuscale env`: show the software of a measurement, or how the software of two differs."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from gpuscale.base.errors import ExitCode, UsageError
from gpuscale.base.grouping import by_key
from gpuscale.cli.inputs import is_folder, read_content, read_nights, say
from gpuscale.records import Environment, EnvironmentChange, NodeEvidence, Results
from gpuscale.records import environment_diff as diff
from gpuscale.records.evidence import Library, merged
from gpuscale.records.run import nodes_of

MeasuredWith = tuple[Sequence[Environment], Sequence[NodeEvidence]]
"""The software environments of a measurement, and the evidence recorded about its nodes."""
_BUILT_WITH = {"NCCL": "nccl_version", "RCCL": "rccl_version", "CUDA runtime": "cuda_version"}
_ALIKE = "no difference in what is recorded (not all environment variables: docs/format.md)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show the software of a measurement (results, a baseline, or a folder of nights), or what "
        "differs between two of them. A difference is not by itself the cause of a loss."
    )
    text = "one measurement, or the word diff and two measurements"
    parser.add_argument("files", metavar="FILE | diff A B", nargs="+", help=text)


def run(arguments: argparse.Namespace) -> int:
    is_diff = arguments.files[0] == "diff"
    paths = [Path(name) for name in arguments.files[is_diff:]]
    if len(paths) != 1 + is_diff:
        raise UsageError("env: give one file or folder, or 'diff' and two of them")
    sides = [_measured_with(path) for path in paths]
    if is_diff:
        say("\n".join(map(diff.environment_text, changes_between(*sides))) or _ALIKE)
    else:
        say(software_text(*sides[0]))
    return ExitCode.OK


def _measured_with(path: Path) -> MeasuredWith:
    if is_folder(path):
        nights = [night for night in read_nights([path]) if night.left_out is None]
        runs = [run for night in nights for run in night.runs]
        return [night.environment for night in nights], nodes_of(runs)
    content = read_content(path)
    found = [content.environment] if isinstance(content, Results) else content.environments.values()
    return [*found], nodes_of(content.runs)


def changes_between(before: MeasuredWith, after: MeasuredWith) -> list[EnvironmentChange]:
    """Return the changes in the environment and in packages, most important first."""
    sides = before[0], after[0]
    changes = [*diff.environment_changes(*sides, before[1], after[1])]
    names = {change.name.removesuffix("_version") for change in changes}
    changes += (change for change in diff.package_changes(*sides) if change.name not in names)
    return sorted(changes, key=lambda change: diff.stack_rank(change.name))


def software_text(environments: Sequence[Environment], nodes: Sequence[NodeEvidence]) -> str:
    """Return a line for each field, script, library and package, with all its distinct values."""
    lines = []
    for field in diff.ENVIRONMENT_FIELDS:
        values = [field.value(environment) for environment in environments]
        if field.words and (known := [str(value) for value in values if value is not None]):
            lines.append(f"{field.words} {diff.listed([*dict.fromkeys(known)])}")
    scripts = {(name, digest) for one in environments for name, digest in one.scripts.items()}
    lines += [f"script {name} {digest}" for name, digest in sorted(scripts)]
    libraries = merged(library for node in nodes for library in node.libraries)
    lines += [_library_text(library, environments) for library in libraries]
    versions = by_key(package for one in environments for package in one.packages.items())
    names = sorted(versions, key=lambda name: (diff.stack_rank(name), name))
    lines += [f"package {name} {diff.listed([*dict.fromkeys(versions[name])])}" for name in names]
    absent = {one.packages_absent for one in environments} - {None}
    absent |= {node.absent.get("libraries") for node in nodes} - {None}
    lines += [f"unknown: {reason}" for reason in sorted(map(str, absent))]
    return "\n".join(lines)


def _library_text(library: Library, environments: Sequence[Environment]) -> str:
    """Describe a library: `NCCL 2.28.3 (loaded from /opt/nccl.so; torch was built with 2.27.7)`."""
    field = _BUILT_WITH.get(library.name)
    built = {getattr(one, field) for one in environments} - {None} if field else set()
    other = ", ".join(sorted(built - {library.version})) if library.version else ""
    built_with = f"; torch was built with {other}" if other else ""
    return f"{library.name} {library.label} (loaded from {library.path}{built_with})"
