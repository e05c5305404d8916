"""Folders of nightly runs, each with a record of the run, in `night.json` and as plain text."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Literal

import msgspec

from gpuscale.base.errors import ExitCode, FileError, UsageError
from gpuscale.base.printable import clean, visible
from gpuscale.records.json_text import from_json, to_json
from gpuscale.records.record import Line, Record
from gpuscale.store.files import read_with

FIRST_ATTEMPT = "attempt-1"
"""Subfolder of a nightly run's folder with the first attempt, if the run was repeated."""
RECORD, RECORD_TEXT = "night.json", "night.txt"


class NightRecord(Record, frozen=True, kw_only=True, omit_defaults=False):
    """Record of how a nightly run, or its first attempt, ended; a field is None if unknown."""

    format: Literal["gpuscale-night"] = "gpuscale-night"
    version: Literal[1] = 1
    night: Line
    """How the nightly run ended, in words."""
    exit: int | None = None
    """Exit code of the nightly run."""
    pytest_exit: int | None = None
    compare_exit: int | None = None
    """Exit code of the comparison; None if nothing was compared."""
    all_measured: bool = False
    infrastructure: tuple[Line, ...] = ()
    """Faults of nodes, the network, a file system or the scheduler."""
    left_out: tuple[Line, ...] = ()
    """Reasons why some pytest items measured nothing without failing."""
    not_collected: tuple[Line, ...] = ()
    """Files and tests that pytest could not collect."""
    attempts: int = 1
    retried_as: Line | None = None
    """Job that repeats this job's nightly run; None if the run is not repeated."""
    started: Line | None = None
    finished: Line | None = None
    host: Line | None = None
    nodes: tuple[Line, ...] = ()
    job: Line | None = None
    revision: Line | None = None
    """Git revision of the repository with the cases."""
    baseline: Line | None = None
    on_verdict: Line | None = None
    """Outcome of the site's verdict command: `told` if it succeeded, else a description of the
    problem; None if no such command is configured."""

    @property
    def has_regressed(self) -> bool:
        """True if the exit code of the nightly run means a regression."""
        return self.exit == ExitCode.REGRESSED


def record_files(record: NightRecord) -> dict[str, str]:
    """Return the contents of a nightly run's record files, by file name."""
    document = msgspec.json.format(to_json(record), indent=2)
    return {RECORD: f"{document}\n", RECORD_TEXT: "".join(_lines(record))}


def _lines(record: NightRecord) -> Iterator[str]:
    """Yield one line for each known field; a field with several texts gets one line per text."""
    shown = {
        **dict.fromkeys(("format", "version")),
        "all_measured": "yes" if record.all_measured else "no",
        "attempts": record.attempts if record.attempts == 1 else f"2, see {FIRST_ATTEMPT}",
        "nodes": " ".join(record.nodes) or None,
    }
    for name, value in {**msgspec.structs.asdict(record), **shown}.items():
        for fact in value if isinstance(value, tuple) else (value,):
            if fact is not None:
                yield f"{name.replace('_', ' ')}: {clean(str(fact))}\n"


def read_night(folder: Path) -> NightRecord | None:
    """Read the record of a nightly run or attempt from its folder; None if none can be read."""
    with suppress(FileError):
        return read_with(folder / RECORD, lambda text: from_json(NightRecord, text))
    return None


def nights_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder that holds the nightly runs of all machines."""
    return Path(environment.get("GPUSCALE_NIGHTLY_DIR") or ".gpuscale/nightly")


def new_night(folder: Path, *, name: str, job: str, day: date) -> Path:
    """Create a nightly run's folder, named by date and job so that jobs never share a folder."""
    for what, text in (("NAME", name), ("JOB", job)):
        if not text or "/" in text or text.startswith("."):
            raise UsageError(f"{what}: '{visible(text)}' is no folder name; use a single word")
    path = folder / name / f"{day.isoformat()}_{job}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
    except FileExistsError:
        problem = "exists already; give every night its own job name"
        raise FileError(visible(str(path)), problem) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        problem = f"cannot be made ({reason}); set GPUSCALE_NIGHTLY_DIR to a folder to write to"
        raise FileError(visible(str(path)), problem) from None
    return path


def next_job(nights: Path, job: str) -> str | None:
    """Return the job that repeated `job` after node failures; None if no job did."""
    for night in nights.glob(f"*_{job}"):
        record = read_night(night / FIRST_ATTEMPT)
        return record.retried_as if record else None
    return None
