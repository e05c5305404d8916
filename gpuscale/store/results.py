"""Results files: their names, and writing to new ones and those of a session that was ended."""

import errno
import fcntl
import os
import re
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from gpuscale import __version__
from gpuscale.encoding import is_json
from gpuscale.errors import DecodeError, FileError
from gpuscale.records import Environment, Results, Run
from gpuscale.store.codec import Header, decode_results, encode_header, encode_run
from gpuscale.store.files import (
    READ_PROBLEMS,
    RESUME_PROBLEMS,
    WRITE_PROBLEMS,
    decoded,
    file_error,
    path_problem,
    read_at_most,
    read_descriptor,
    refuse_unreadable,
    replace_file,
    sync_folder,
)

RESULTS_FOLDER = Path(".gpuscale") / "results"
"""Where results are written and looked for, below the folder in which a command is given."""
_DATED_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d{6}\.\d{3}Z-[0-9a-f]{6}\.jsonl")
_MEASURE = "measure first, for example with: pytest bench_cases --gpus 1,2"


def default_results_path(folder: Path, now: datetime) -> Path:
    """A new file name in the folder, dated in UTC: in the order of names, later is newer."""
    if now.tzinfo is None:
        raise ValueError("now has no time zone; use datetime.now(timezone.utc)")
    dated = now.astimezone(UTC)
    milliseconds = f"{dated.microsecond // 1000:03d}"
    name = f"{dated:%Y-%m-%dT%H%M%S}.{milliseconds}Z-{secrets.token_hex(3)}.jsonl"
    return folder / name


def newest_results(folder: Path) -> Path:
    """The newest of the results files that `default_results_path` named.

    Raises:
        FileError: the folder has none, or cannot be read; it says where else there are some.
    """
    try:
        dated = _dated_names(folder)
    except FileNotFoundError:
        dated = []
    except (OSError, ValueError) as error:
        raise file_error(folder, path_problem(error, READ_PROBLEMS)) from None
    if not dated:
        raise file_error(folder.absolute(), f"there are no results yet; {_remedy(folder)}")
    return folder / max(dated)


def _dated_names(folder: Path) -> list[str]:
    names = (entry.name for entry in os.scandir(folder) if entry.is_file())
    return [name for name in names if _DATED_NAME.fullmatch(name)]


def _remedy(folder: Path) -> str:
    """Where there are results after all, above a folder that has none, or how to make some."""
    for above in () if folder.is_absolute() else Path.cwd().parents:
        with suppress(OSError):
            if _dated_names(above / folder):
                return f"{above / folder} has some, so run this in {above}, or name a file"
    return _MEASURE


def refuse_unwritable(folder: Path) -> None:
    """Checks that files can be made in a folder, or the folder itself where it is not there yet.

    Nothing is made. A disk that is full is not noticed.

    Raises:
        FileError: they cannot; said before hours of measuring instead of after.
    """
    nearest = next((part for part in (folder, *folder.parents) if os.access(part, os.F_OK)), folder)
    if not nearest.is_dir():
        raise file_error(nearest, WRITE_PROBLEMS[errno.ENOTDIR])
    # Also for root, whom no permissions stop: a file system may be read-only.
    if not os.access(nearest, os.W_OK | os.X_OK):
        is_read_only = bool(os.statvfs(nearest).f_flag & os.ST_RDONLY)
        raise file_error(nearest, WRITE_PROBLEMS[errno.EROFS if is_read_only else errno.EACCES])


class _RunAppender:
    """A results file that is being written: a run is on disk when `append` returns.

    Each line goes out in one piece, and a line that the disk takes only in part is taken back,
    so that a kill or a full disk loses the run under way and nothing else.
    """

    _descriptor = -1

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, run: Run) -> None:
        """Writes one run and waits until it is on disk.

        Raises:
            FileError: the run is not in the file; the runs before it are.
        """
        if self._descriptor < 0:
            raise ValueError(f"{self.path} is closed")
        self._make_ready()
        try:
            line = encode_run(run)
        except DecodeError as error:
            label = f"{run.key.label}, run {run.index}"
            raise file_error(self.path, f"cannot record {label}: {error}") from None
        self._write_line(line)

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _make_ready(self) -> None:
        """Mends the end of a file that was there before, ahead of the first run."""

    def _write_line(self, line: str) -> None:
        rest = memoryview(line.encode() + b"\n")
        try:
            end = os.fstat(self._descriptor).st_size
            try:
                # One write takes the whole line, unless the disk is full.
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
                os.fsync(self._descriptor)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._descriptor, end)
                raise
        except OSError as error:
            raise file_error(self.path, path_problem(error, WRITE_PROBLEMS)) from None


class ResultsWriter(_RunAppender):
    """A new results file, created with its header at once."""

    def __init__(
        self,
        path: Path,
        *,
        environment: Environment,
        created_at: datetime,
        injections: tuple[str, ...] = (),
    ) -> None:
        """Creates the file, and its folders where they are missing."""
        super().__init__(path)
        header = Header(
            created_at=created_at.isoformat(timespec="milliseconds"),
            gpuscale_version=__version__,
            environment=environment,
            injections=injections,
        )
        try:
            line = encode_header(header)
        except DecodeError as error:
            raise file_error(path, f"cannot record this environment: {error}") from None
        self._descriptor = _create(path)
        try:
            _lock(path, self._descriptor)
            self._write_line(line)
        except FileError:
            self.close()
            with suppress(OSError):
                path.unlink()
            raise


class ResumedResults(_RunAppender):
    """A results file that further runs are appended to.

    Opening it changes nothing. A last line that a kill cut short is no part of `results`; the
    first `append` cuts it off, after copying the file as it was to `copy`.
    """

    results: Results
    copy: Path | None
    """Where a file whose last line is cut short will be copied to; None for a whole file."""

    def __init__(self, path: Path) -> None:
        """Opens and reads the file, and keeps other sessions from writing to it."""
        super().__init__(path)
        try:
            refuse_unreadable(path, path.stat())
            flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
            self._descriptor = os.open(path, flags)
        except (OSError, ValueError) as error:
            raise file_error(path, path_problem(error, RESUME_PROBLEMS)) from None
        try:
            _lock(path, self._descriptor)
            content = read_descriptor(path, self._descriptor)
            self._size = len(content)
            self._kept = _size_without_partial_line(content)
            self._ends_with_break = content[: self._kept].endswith(b"\n")
            self.results = decoded(path, content[: self._kept], decode_results)
            unused = f"{path.name[:200]}.{secrets.token_hex(3)}.cut-short"
            self.copy = None if self._kept == self._size else path.with_name(unused)
        except BaseException:
            self.close()
            raise
        self._is_ready = False

    def _make_ready(self) -> None:
        if self._is_ready:
            return
        try:
            if os.fstat(self._descriptor).st_size != self._size:
                problem = "has changed since it was read, by another session; resume it again"
                raise file_error(self.path, problem)
            if self.copy is not None:
                os.lseek(self._descriptor, 0, os.SEEK_SET)
                replace_file(self.copy, read_at_most(self._descriptor, self._size))
                os.ftruncate(self._descriptor, self._kept)
            elif not self._ends_with_break:
                self._write_line("")
        except OSError as error:
            raise file_error(self.path, path_problem(error, WRITE_PROBLEMS)) from None
        self._is_ready = True


def _size_without_partial_line(content: bytes) -> int:
    """How much of a results file is whole: all but a last line that was cut short.

    The header stays in any case: without it there is nothing to go on from.
    """
    before, line_break, last = content.rpartition(b"\n")
    if not line_break:
        return len(content)
    return len(content) if is_json(last) else len(before) + 1


def _lock(path: Path, descriptor: int) -> None:
    # Some network file systems have no locks; two sessions in one file are rare enough.
    with suppress(OSError):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = "another session is writing to it; wait until that has ended"
            raise file_error(path, problem) from None


def _create(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        known = {**WRITE_PROBLEMS, errno.EEXIST: WRITE_PROBLEMS[errno.ENOTDIR]}
        raise file_error(path.parent, path_problem(error, known)) from None
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except (OSError, ValueError) as error:
        raise file_error(path, path_problem(error, WRITE_PROBLEMS)) from None
    sync_folder(path.parent)
    return descriptor
