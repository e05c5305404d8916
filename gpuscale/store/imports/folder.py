"""A folder of imported nights, which records what has been imported."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec

from gpuscale.base.errors import UsageError
from gpuscale.base.printable import visible
from gpuscale.records import Run
from gpuscale.records.json_text import from_json, to_json
from gpuscale.store.codec import encode_header, encode_run
from gpuscale.store.files import WRITE_PROBLEMS, file_errors, read_with, replace_file
from gpuscale.store.imports.session import Directions, Session, results_of
from gpuscale.store.results import read_results

_STATE = "import.json"


class _State(msgspec.Struct):
    """Contents of `import.json` in the folder of imported nights."""

    system: str | None = None
    more_is_better: dict[str, bool] = {}
    """Direction of each metric by name: True if more is better."""
    units: dict[str, list[str]] = {}
    """Units in which each row, by its label, was imported, in that order."""
    files: dict[str, tuple[int, int]] = {}
    """Size and modification time (ns) of each imported file, by path."""


class ImportFolder:
    """Context manager that writes sessions as nights; it reads and writes the folder's state."""

    def __init__(self, path: Path, better: Mapping[str, bool]) -> None:
        """`better` has directions of metrics, which override the directions in the folder."""
        self._path, self._better = path, better
        self._state = _State()
        self._directions = Directions(better)
        self.several_units: dict[str, list[str]] = {}
        """Units of each metric that was imported in more than one unit."""

    def __enter__(self) -> Self:
        with file_errors(self._path, WRITE_PROBLEMS):
            self._path.mkdir(parents=True, exist_ok=True)
        state = self._path / _STATE
        if state.exists():
            self._state = read_with(state, lambda text: from_json(_State, text))
        self._directions = Directions({**self._state.more_is_better, **self._better})
        return self

    def __exit__(self, *_: object) -> None:
        self._state.more_is_better = self._directions.known
        state = self._path / _STATE
        with file_errors(state):
            replace_file(state, to_json(self._state).encode())

    def has(self, path: Path) -> bool:
        """True if the file was imported before and has not changed since."""
        return self._state.files.get(os.path.realpath(path)) == _version(path)

    def remember(self, path: Path) -> None:
        """Remember a file as imported."""
        self._state.files[os.path.realpath(path)] = _version(path)

    def add(self, session: Session) -> bool:
        """Write a session as a night; return False if the folder already has it.

        Raise a UsageError for a session of another system, or a metric of unknown direction.
        """
        known = self._state.system
        if known is not None and session.system not in (known, None):
            raise UsageError(
                f"this is of {session.system}, and {visible(str(self._path))} has nights of "
                f"{known}; import one of them with --system, each into a folder of its own"
            )
        results = results_of(session, self._directions)
        self._learn_units(results.runs)
        self._state.system = known or session.system
        file = self._path / session.file_name
        # A performance log grows during a day.
        if file.exists() and len(read_results(file).runs) >= len(results.runs):
            return False
        lines = (encode_header(results), *map(encode_run, results.runs))
        with file_errors(file):
            replace_file(file, "".join(f"{line}\n" for line in lines).encode())
        return True

    def _learn_units(self, runs: Sequence[Run]) -> None:
        for run in runs:
            of, metric = run.configuration, run.configuration.metric
            known = self._state.units.setdefault(of.label, [])
            if metric is not None and metric.unit not in known:
                known.append(metric.unit)
                if len(known) > 1:
                    self.several_units[of.label] = known


def _version(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
