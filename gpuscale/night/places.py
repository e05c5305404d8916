"""Where a night is kept: one folder, named by date and job, never written to by two jobs."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from gpuscale.errors import FileError, UsageError
from gpuscale.printable import visible


@dataclass(frozen=True, slots=True, kw_only=True)
class NightFolder:
    """The files of a night, or of its first attempt."""

    path: Path

    @property
    def results(self) -> Path:
        """What was measured."""
        return self.path / "results.jsonl"

    @property
    def baseline(self) -> Path:
        """A copy of what it was judged against."""
        return self.path / "baseline.json"

    @property
    def pytest_log(self) -> Path:
        """What pytest said."""
        return self.path / "pytest.log"

    @property
    def items(self) -> Path:
        """Pytest's items, as JUnit XML."""
        return self.path / "junit.xml"

    @property
    def record(self) -> Path:
        """How it ended; written last."""
        return self.path / "night.txt"

    @property
    def evidence(self) -> Path:
        """What failed, and where; of an attempt that was made again."""
        return self.path / "evidence.json"

    @property
    def first_attempt(self) -> "NightFolder":
        """Where an attempt is kept that was made again."""
        return NightFolder(path=self.path / "attempt-1")

    def comparison(self, ending: str) -> Path:
        """The verdict in one of its formats."""
        return self.path / f"comparison.{ending}"


def nights_folder(environment: Mapping[str, str]) -> Path:
    """Where all nights are."""
    return Path(environment.get("GPUSCALE_NIGHTLY_DIR") or ".gpuscale/nightly")


def new_night(folder: Path, *, name: str, job: str, day: date) -> NightFolder:
    """Make the folder of a night.

    Raises:
        UsageError: the name or the job is no part of a path.
        FileError: it cannot be made, or is there already.
    """
    for what, text in (("NAME", name), ("JOB", job)):
        if not text or "/" in text or text.startswith("."):
            raise UsageError(f"{what}: '{visible(text)}' is no name of a folder; use a word for it")
    path = folder / name / f"{day.isoformat()}_{job}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
    except FileExistsError:
        problem = "is there already; every night needs a job name of its own"
        raise FileError(visible(str(path)), problem) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        problem = f"cannot be made ({reason}); set GPUSCALE_NIGHTLY_DIR to a folder to write to"
        raise FileError(visible(str(path)), problem) from None
    return NightFolder(path=path)
