"""Name, read, create and resume results files."""

import os
import re
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from gpuscale.base.errors import DecodeError, FileError
from gpuscale.records import Results, Run
from gpuscale.records.record import is_json, to_json
from gpuscale.store import files
from gpuscale.store.file_formats import decode_results, encode_header

RESULTS_FOLDER = Path(".gpuscale") / "results"
RESULTS = "results.jsonl"
"""Name of the results file in the folder of a night."""
PROBES_ENDING = ".probes.json"
"""Suffix of files that contain only probes, in the format of a results file."""
_DATED_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d{6}\.\d{3}Z-[0-9a-f]{6}(-\d+)?\.jsonl")


def default_results_path(folder: Path, now: datetime) -> Path:
    """Return a path for a new results file, named by UTC time so that names sort by age."""
    moment = f"{now.astimezone(UTC):%Y-%m-%dT%H%M%S.%f}"[:-3]
    return folder / f"{moment}Z-{secrets.token_hex(3)}.jsonl"


def newest_results(folder: Path) -> list[Path]:
    """Return dated results (`…-2.jsonl` too), the last written first; FileError if none exist."""
    with files.file_errors(folder), suppress(FileNotFoundError):
        found = [entry for entry in os.scandir(folder) if _DATED_NAME.fullmatch(entry.name)]
        # A file named by advice has the date of the session before it.
        if dated := [(each.stat().st_mtime_ns, each.name) for each in found if each.is_file()]:
            return [folder / name for _, name in sorted(dated, reverse=True)]
    raise no_results(folder)


def no_results(folder: Path) -> FileError:
    """Return the error to raise if a command needs results but the folder has none."""
    problem = (
        "there are no results here; name a file that was written with --results, or measure "
        "first: pytest … --gpus 1,2"
    )
    return FileError(folder.absolute(), problem)


def with_recorded_probes(path: Path, results: Results) -> Results:
    """Add the probes that `gpuscale probe` saved in a file next to the results file, if any."""
    beside = path.with_suffix(PROBES_ENDING)
    return replace(results, probes=read_results(beside).probes) if beside.is_file() else results


def read_results(path: Path) -> Results:
    """Read a results file; raise a `FileError` if it is missing or invalid."""
    return files.with_folder(path, files.read_with(path, decode_results))


def read_beginning(path: Path) -> Results:
    """Read a results file's header and first run; raise a `FileError` if they cannot be read."""
    return files.read_with(path, lambda text: decode_results("\n".join(text.split("\n", 2)[:2])))


def validate_writable(folder: Path) -> None:
    """Raise a `FileError` if no file can be created in a folder; called before measuring."""
    # Imported here, since the import is slow and only needed for measuring.
    from tempfile import TemporaryFile

    nearest = next((part for part in (folder, *folder.parents) if os.access(part, os.F_OK)), folder)
    # Permissions are no proof: root ignores them, and file systems such as sysfs refuse anyway.
    try:
        with files.file_errors(nearest), TemporaryFile(dir=nearest):
            pass
    except FileError as error:
        raise FileError(nearest, f"{error.problem}, with --results FILE") from None


def leave_out(path: Path, reason: str | None) -> None:
    """Mark a results file as excluded from comparisons, with the reason; None includes it again."""
    with ResultsFile(path) as locked, files.file_errors(path):
        header = encode_header(replace(locked.results, left_out=reason))
        _, _, runs = path.read_bytes().partition(b"\n")
        measured_ns = path.stat().st_mtime_ns
        files.write_report(path, header.encode() + b"\n" + runs)
        os.utime(path, ns=(measured_ns, measured_ns))


def create_results(path: Path, head: Results) -> "ResultsFile":
    """Create and open a results file, with the header of the given results but not their runs."""
    try:
        header = encode_header(head)
    except DecodeError as error:
        raise FileError(path, f"cannot record this environment: {error}") from None
    files.make_folder(path.parent)
    with files.file_errors(path):
        path.touch(exist_ok=False)
    try:
        files.write_report(path, f"{header}\n")
    except FileError:
        path.unlink()
        raise
    return ResultsFile(path)


class ResultsFile:
    """An open and locked results file; a run is on disk when `append` returns.

    Opening the file does not change it. If a killed session left the last line incomplete
    (`is_cut_short`), that line is not in `results`, and the first `append` removes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with files.file_errors(path):
            files.validate_readable(path)
            self._file = path.open("ab", buffering=0)
        try:
            problem = "another session is writing to it; wait until that has ended"
            files.lock_file(path, self._file.fileno(), problem)
            with files.file_errors(path):
                content = path.read_bytes()
            before, line_break, last = content.rpartition(b"\n")
            # The header is always kept, since nothing can be resumed without it.
            kept = content if not line_break or is_json(last) else before + line_break
            self.results = files.decode_content(path, kept, decode_results)
        except BaseException:
            self.close()
            raise
        self._size, self._kept = len(content), len(kept)
        self._needs_break = not kept.endswith(b"\n")
        self.is_cut_short = self._kept < self._size
        self._is_ready = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def append(self, run: Run) -> None:
        """Write one run and flush it to disk; after a `FileError`, the file is unchanged."""
        try:
            line = to_json(run)
        except DecodeError as error:
            label = f"{run.label}, run {run.index}"
            raise FileError(self.path, f"cannot record {label}: {error}") from None
        with files.file_errors(self.path):
            if not self._is_ready:
                if os.fstat(self._file.fileno()).st_size != self._size:
                    problem = "has changed since it was read, by another session; resume it again"
                    raise FileError(self.path, problem)
                self._file.truncate(self._kept)
                if self._needs_break:
                    self._write_line("")
                self._is_ready = True
            self._write_line(line)

    def _write_line(self, line: str) -> None:
        rest = memoryview(line.encode() + b"\n")
        end = os.fstat(self._file.fileno()).st_size
        try:
            # One write takes the complete line unless the disk is full.
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError:
            with suppress(OSError):
                self._file.truncate(end)
            raise
