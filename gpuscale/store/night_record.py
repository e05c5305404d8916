"""Folders of nights and the record in each: `night.json`, and the same as text for people."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Literal

import msgspec

from gpuscale.base.errors import ExitCode, FileError, UsageError
from gpuscale.base.printable import clean, visible
from gpuscale.records.json_text import from_builtins, from_json, to_json
from gpuscale.records.record import Line, Record
from gpuscale.store.files import read_with

FIRST_ATTEMPT = "attempt-1"
"""Folder, within a night's folder, of an attempt that was repeated."""
RECORD, RECORD_TEXT = "night.json", "night.txt"


class NightRecord(Record, frozen=True, kw_only=True, omit_defaults=False):
    """The end of a night, or of its first attempt; a field is None if unknown."""

    format: Literal["gpuscale-night"] = "gpuscale-night"
    version: Literal[1] = 1
    night: Line
    """The end of the night in words."""
    exit: int | None = None
    """The exit code of the night."""
    pytest_exit: int | None = None
    compare_exit: int | None = None
    """None if nothing was compared."""
    all_measured: bool = False
    infrastructure: tuple[Line, ...] = ()
    """Faults of nodes, network, file system or scheduler."""
    left_out: tuple[Line, ...] = ()
    """Reasons why items made no run although nothing failed."""
    not_collected: tuple[Line, ...] = ()
    """Files and tests that pytest could not collect."""
    attempts: int = 1
    retried_as: Line | None = None
    """The job that took the place of this one."""
    started: Line | None = None
    finished: Line | None = None
    host: Line | None = None
    nodes: tuple[Line, ...] = ()
    job: Line | None = None
    revision: Line | None = None
    """Git revision of the cases."""
    baseline: Line | None = None
    on_verdict: Line | None = None
    """Problem of the site's own command, or `told`; None without a command."""

    @property
    def has_regressed(self) -> bool:
        """True if the night ended with the exit code of a regression."""
        return self.exit == ExitCode.REGRESSED


def record_files(record: NightRecord) -> dict[str, str]:
    """The contents of a record's files, by name."""
    document = msgspec.json.format(to_json(record), indent=2)
    return {RECORD: f"{document}\n", RECORD_TEXT: "".join(_lines(record))}


def _lines(record: NightRecord) -> Iterator[str]:
    """A line for each known field, and one for each of several texts."""
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
    """Read the record of a night or an attempt; None if it has none that can be read."""
    with suppress(FileError):
        return read_with(folder / RECORD, lambda text: from_json(NightRecord, text))
    # Nights of gpuscale before night.json was written have the text alone.
    with suppress(FileError):
        return read_with(folder / RECORD_TEXT, _from_text)
    return None


def _from_text(text: str) -> NightRecord:
    facts = {name: value for name, _, value in (line.partition(": ") for line in text.splitlines())}
    texts = {name: facts.get(name) for name in ("night", "started", "host")}
    code = int(facts["exit"]) if facts.get("exit", "").isdecimal() else None
    known = {**texts, "exit": code, "retried_as": facts.get("retried as")}
    return from_builtins(NightRecord, known)


def nights_folder(environment: Mapping[str, str]) -> Path:
    """The folder that holds the nights of all machines."""
    return Path(environment.get("GPUSCALE_NIGHTLY_DIR") or ".gpuscale/nightly")


def new_night(folder: Path, *, name: str, job: str, day: date) -> Path:
    """Make the folder of a night, named by date and job, so that two jobs never share one."""
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
    """The job that took the place of this one after its nodes failed; None if none did."""
    for night in nights.glob(f"*_{job}"):
        record = read_night(night / FIRST_ATTEMPT)
        return record.retried_as if record else None
    return None
