"""The results files that a command is given, or finds for itself."""

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from gpuscale.errors import FileError, UsageError
from gpuscale.printable import visible
from gpuscale.records import Results
from gpuscale.report.phrases import age_text
from gpuscale.store import newest_results, read_results


def read_all_results(paths: Sequence[Path]) -> list[Results]:
    """The results in some files; a run in two of them is refused: intervals would be too narrow."""
    seen: dict[tuple[object, ...], Path] = {}
    results = []
    for path in paths:
        read = read_results(path)
        for number, run in enumerate(read.runs, start=2):
            identity = (run.key, run.configuration, run.index, run.started_at_s)
            if identity in seen:
                where = "this file" if seen[identity] == path else str(seen[identity])
                problem = f"this run is in {where} already; give every run once"
                raise FileError(path, problem, line=number)
            seen[identity] = path
        results.append(read)
    return results


def newest_input(folder: Path) -> Path:
    """The newest results, named on standard error: they were not the user's own choice."""
    path = newest_results(folder)
    results = read_results(path)
    measured = f"{results.created_at}{age_text(results, datetime.now(UTC))}"
    sys.stderr.write(f"gpuscale: the newest results: {visible(str(path))}, measured {measured}\n")
    return path


def add_selection(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add which rows a command takes."""
    text = f"{verb} only these numbers of GPUs (default: all)"
    parser.add_argument("--gpus", metavar="N,N,…", help=text)
    text = f"{verb} only this case; may be given several times (default: all)"
    parser.add_argument("--case", metavar="CASE[/STRATEGY]", action="append", help=text)


def gpu_counts(text: str) -> frozenset[int]:
    """The numbers that `--gpus 1,2,4` names."""
    try:
        counts = frozenset(int(part) for part in text.split(","))
    except ValueError:
        counts = frozenset()
    if not counts or min(counts) < 1:
        raise UsageError(f"--gpus: '{text}' is not a list of numbers above 0, such as 1,2,4")
    return counts
