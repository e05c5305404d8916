"""The only place that touches results files and baseline files.

Whatever a file holds and whatever a file system does, only `FileError` is raised, with one line
of text: path, place, problem and remedy.
"""

import errno
import os
import re
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from gpuscale.errors import DecodeError, FileError
from gpuscale.formats import (
    RESULTS_FORMAT,
    decode_baseline,
    decode_results,
    encode_baseline,
    encode_header,
    encode_run,
    format_of,
)
from gpuscale.formats.text import visible
from gpuscale.records import Baseline, Environment, Results, Run
from gpuscale.version import __version__

MOST_BYTES = 256 * 1024 * 1024
"""The largest file that is read; a night of 18 runs on 1024 GPUs takes about 20 MB."""

_T = TypeVar("_T")
_DATED_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d{6}\.\d{3}Z-[0-9a-f]{6}\.jsonl")
_MEASURE = "measure first, for example with: pytest bench_cases --gpus 1,2"
_READ_PROBLEMS = {
    errno.ENOENT: "there is no such file; check the path",
    errno.ENOTDIR: "a part of the path is a file, not a folder; check the path",
    errno.EACCES: "permission denied; make it readable for this user",
    errno.ELOOP: "its symbolic links lead in a circle; give the file itself",
    errno.ENAMETOOLONG: "the path is too long for this system; check it",
}
_WRITE_PROBLEMS = {
    errno.ENOENT: "its folder does not exist; create the folder first",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another path",
    errno.EEXIST: "exists already and is not overwritten; choose another name, or delete it",
    errno.EACCES: "permission denied; choose a folder that this user may write to",
    errno.EPERM: "not permitted; choose a folder that this user may write to",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOSPC: "the disk is full; free some space, or choose another folder",
    errno.EDQUOT: "the disk quota is used up; free some space, or choose another folder",
    errno.EFBIG: "the file may not grow further (a limit of this system or shell, ulimit -f)",
    errno.ELOOP: "its symbolic links lead in a circle; give the file itself",
    errno.ENAMETOOLONG: "the path is too long for this system; choose a shorter one",
}


def read_results(path: Path) -> Results:
    """The results in a file.

    Raises:
        FileError: it cannot be read, or is not a results file that this gpuscale understands.
    """
    return _decoded(path, decode_results)


def read_baseline(path: Path) -> Baseline:
    """The baseline in a file.

    Raises:
        FileError: it cannot be read, or is not a baseline that this gpuscale understands.
    """
    return _decoded(path, decode_baseline)


def read_any(path: Path) -> Results | Baseline:
    """What is in a file, told by its content and not by its name.

    Raises:
        FileError: it cannot be read, or is neither of the two formats.
    """
    return _decoded(path, _decode_either)


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Writes a baseline file whole or not at all, in place of an earlier one.

    A symbolic link stays one: the file that it leads to is replaced.

    Raises:
        FileError: the file cannot be written, or the baseline breaks the format's rules.
    """
    try:
        text = encode_baseline(baseline)
    except DecodeError as error:
        raise _file_error(path, f"cannot record this baseline: {error}") from None
    try:
        target = Path(os.path.realpath(path))
        _refuse_special_target(path)
        _replace(target, text.encode())
    except (OSError, ValueError) as error:
        raise _file_error(path, _path_problem(error, _WRITE_PROBLEMS)) from None


def default_results_path(folder: Path, now: datetime) -> Path:
    """A new file name in the folder, dated in UTC: in the order of names, later is newer.

    Args:
        folder: Usually `.gpuscale/results`.
        now: With its time zone.
    """
    if now.tzinfo is None:
        raise ValueError("now has no time zone; use datetime.now(timezone.utc)")
    dated = now.astimezone(UTC)
    milliseconds = f"{dated.microsecond // 1000:03d}"
    name = f"{dated:%Y-%m-%dT%H%M%S}.{milliseconds}Z-{secrets.token_hex(3)}.jsonl"
    return folder / name


def newest_results(folder: Path) -> Path:
    """The newest of the results files that `default_results_path` named.

    Raises:
        FileError: the folder has none, or cannot be read.
    """
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.is_file()]
    except FileNotFoundError:
        raise _file_error(folder, f"there are no results yet; {_MEASURE}") from None
    except (OSError, ValueError) as error:
        raise _file_error(folder, _path_problem(error, _READ_PROBLEMS)) from None
    dated = [name for name in names if _DATED_NAME.fullmatch(name)]
    if not dated:
        raise _file_error(folder, f"there are no results in this folder; {_MEASURE}")
    return folder / max(dated)


class ResultsWriter:
    """A results file that is being written: a run is on disk when `append` returns.

    The file is created with its header at once. Each line goes out in one piece, and a line
    that the disk takes only in part is taken back, so that a kill or a full disk loses the run
    under way and nothing else.
    """

    def __init__(self, path: Path, *, environment: Environment, created_at: datetime) -> None:
        """Creates the file, and its folders where they are missing.

        Args:
            path: A file that does not exist yet.
            environment: Where the runs are measured.
            created_at: With its time zone.

        Raises:
            FileError: the file exists already or cannot be written.
        """
        self.path = path
        self._descriptor = -1
        try:
            header = encode_header(
                created_at=created_at.isoformat(timespec="milliseconds"),
                gpuscale_version=__version__,
                environment=environment,
            )
        except DecodeError as error:
            raise _file_error(path, f"cannot record this environment: {error}") from None
        self._descriptor = _create(path)
        try:
            self._write_line(header)
        except FileError:
            self.close()
            with suppress(OSError):
                path.unlink()
            raise

    def __enter__(self) -> "ResultsWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def append(self, run: Run) -> None:
        """Writes one run and waits until it is on disk.

        Raises:
            FileError: the run is not in the file; the runs before it are.
        """
        if self._descriptor < 0:
            raise ValueError(f"{self.path} is closed")
        try:
            line = encode_run(run)
        except DecodeError as error:
            label = f"{run.key.label}, run {run.index}"
            raise _file_error(self.path, f"cannot record {label}: {error}") from None
        self._write_line(line)

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

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
            raise _file_error(self.path, _path_problem(error, _WRITE_PROBLEMS)) from None


def _decode_either(text: str) -> Results | Baseline:
    return decode_results(text) if format_of(text) == RESULTS_FORMAT else decode_baseline(text)


def _decoded(path: Path, decode: Callable[[str], _T]) -> _T:
    text = _read_text(path)
    try:
        return decode(text)
    except DecodeError as error:
        raise _file_error(path, error.problem, place=error.place or None) from None


def _read_text(path: Path) -> str:
    try:
        # Told before it is opened: opening a device can already do something.
        _refuse_unreadable(path, path.stat())
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            _refuse_unreadable(path, os.fstat(descriptor))
            content = _read_at_most(descriptor, MOST_BYTES + 1)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise _file_error(path, _path_problem(error, _READ_PROBLEMS)) from None
    if len(content) > MOST_BYTES:
        raise _too_large(path, len(content))
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        place = f"byte {error.start + 1}"
        raise _file_error(path, "is not UTF-8 text; save it as UTF-8", place=place) from None


def _read_at_most(descriptor: int, count: int) -> bytes:
    chunks = []
    while count > 0 and (chunk := os.read(descriptor, min(count, 1024 * 1024))):
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)


def _refuse_unreadable(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise _file_error(path, "is a folder; give one of the files in it")
    if not stat.S_ISREG(status.st_mode):
        raise _file_error(path, "is not a regular file (a device, pipe or socket); save it first")
    if status.st_size > MOST_BYTES:
        raise _too_large(path, status.st_size)


def _too_large(path: Path, size: int) -> FileError:
    limit = f"{MOST_BYTES // (1024 * 1024)} MiB"
    problem = f"has at least {size} bytes, more than the {limit} that are read"
    return _file_error(path, f"{problem}; give fewer runs in one file")


def _refuse_special_target(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise _file_error(path, "is a folder; give the name of a file in it")
    # Replacing a device such as /dev/null by a file would break the machine.
    if not stat.S_ISREG(mode):
        raise _file_error(path, "is not a regular file; choose another path")


def _replace(target: Path, content: bytes) -> None:
    beside = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123  a descriptor
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        beside.replace(target)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
    _sync_folder(target.parent)


def _create(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise _file_error(path.parent, _WRITE_PROBLEMS[errno.ENOTDIR]) from None
    except (OSError, ValueError) as error:
        raise _file_error(path.parent, _path_problem(error, _WRITE_PROBLEMS)) from None
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except (OSError, ValueError) as error:
        raise _file_error(path, _path_problem(error, _WRITE_PROBLEMS)) from None
    _sync_folder(path.parent)
    return descriptor


def _sync_folder(folder: Path) -> None:
    # Makes the new name itself durable; some network file systems refuse it, and a file that
    # is written but perhaps not yet named after a power cut is no reason to stop measuring.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _path_problem(error: OSError | ValueError, known: dict[int, str]) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        default = f"{os.strerror(error.errno)}; check the path and its file system"
        return known.get(error.errno, default)
    return f"{error}; check the path"


def _file_error(path: Path, problem: str, *, place: str | None = None) -> FileError:
    return FileError(visible(str(path)), visible(problem), place=place and visible(place))
