"""`gpuscale baseline diff`: show the differences between two baselines, entry by entry."""

import argparse
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import msgspec

from gpuscale.analysis.scaling import Entry
from gpuscale.base.errors import ExitCode
from gpuscale.cli.baseline import measured_entries
from gpuscale.judge.compare import compare
from gpuscale.judge.recording import results_of
from gpuscale.records import Baseline, PublishedFigure
from gpuscale.records.environment_diff import environment_changes, environment_text, listed
from gpuscale.records.run import nodes_of
from gpuscale.reports.show.baseline_text import EntryChange, changes_text
from gpuscale.store import read_baseline

_HEAD = ("name", "cluster", "hardware", "source", "tolerances", "recorded_at", "expires_on")
_LONGEST_SHOWN = 70


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print what differs between two baselines, entry by entry; measured entries of B are "
        "judged against those of A. The exit code is 0 whatever differs."
    )
    parser.add_argument("before", metavar="A", help="a baseline")
    parser.add_argument("after", metavar="B", help="another one")


def run(arguments: argparse.Namespace) -> int:
    """Print the differences, and judge the entries of baseline B against those of baseline A."""
    before, after = (read_baseline(Path(path)) for path in (arguments.before, arguments.after))
    old, new = _entries(before), _entries(after)
    changes = []
    for entry in {**old, **new}:
        then, now = old.get(entry), new.get(entry)
        if then != now:
            only = arguments.after if then is None else arguments.before
            remark = "" if then and now else f"only in {only}"
            changes.append(EntryChange(old=then, new=now, remark=remark))
    heads = (_changes(name, getattr(before, name), getattr(after, name)) for name in _HEAD)
    parts = ["\n".join((*chain(*heads), *_environments(before, after)))]
    if changes:
        parts.append(changes_text(changes, before, after, compare(before, results_of(after))))
    text = "\n\n".join(part for part in parts if part) or "no difference"
    sys.stdout.write(f"{text}\n")
    return ExitCode.OK


def _entries(baseline: Baseline) -> dict[tuple[object, ...], Entry | PublishedFigure]:
    published = ((figure.key, figure) for figure in baseline.published)
    return dict([*measured_entries(baseline).items(), *published])


def _changes(name: str, old: object, new: object) -> Iterator[str]:
    """Describe the change of a value, field by field if the value is a record."""
    if old == new:
        return
    if isinstance(old, msgspec.Struct) and type(old) is type(new):
        for field in old.__struct_fields__:
            yield from _changes(f"{name}.{field}", getattr(old, field), getattr(new, field))
    else:
        yield f"{name}: {_shown(old)} → {_shown(new)}"


def _shown(value: object) -> str:
    if value is None or value == ():
        return "not set"
    if isinstance(value, tuple):
        return "; ".join(map(_shown, value))
    if isinstance(value, msgspec.Struct):
        known = ((field, getattr(value, field)) for field in value.__struct_fields__)
        return ", ".join(f"{name} {shown}" for name, shown in known if shown is not None)
    text = str(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def _environments(before: Baseline, after: Baseline) -> Iterator[str]:
    old, new = tuple(before.environments.values()), tuple(after.environments.values())
    nodes = map(nodes_of, (before.runs, after.runs))
    yield from map(environment_text, environment_changes(old, new, *nodes))
    hosts, others = (
        sorted({environment.host for environment in side if environment.host})
        for side in (old, new)
    )
    if hosts and others and hosts != others:
        yield f"hosts: {listed(hosts)} → {listed(others)}"
