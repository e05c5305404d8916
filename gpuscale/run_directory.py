"""The folder through which the launcher and the ranks of one run exchange files."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDirectory:
    """The names of the files; each has one writer and is complete as soon as it exists."""

    path: Path

    @property
    def request(self) -> Path:
        """What the launcher asks for (records.RunRequest)."""
        return self.path / "request.json"

    @property
    def progress(self) -> Path:
        """How far rank 0 is: stage, done, total, separated by tabs."""
        return self.path / "progress"

    def pid(self, rank: int) -> Path:
        """The rank's process id."""
        return self.path / f"rank-{rank}.pid"

    def stacks(self, rank: int) -> Path:
        """Where the rank was when its time was up."""
        return self.path / f"rank-{rank}.stacks"

    def outcome(self, rank: int) -> Path:
        """What the rank measured (records.RankOutcome)."""
        return self.path / f"rank-{rank}.outcome.json"

    def failure(self, rank: int) -> Path:
        """What ended the rank (records.Failure)."""
        return self.path / f"rank-{rank}.failure.json"


def write_atomically(path: Path, text: str) -> None:
    """Write a file that readers see whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
