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
    def overhead_plan(self) -> Path:
        """What is asked beside the request to measure the overhead (records.OverheadPlan)."""
        return self.path / "overhead-plan.json"

    @property
    def progress(self) -> Path:
        """How far rank 0 is: stage, done, total, separated by tabs, then blanks."""
        return self.path / "progress"

    @property
    def hosts(self) -> Path:
        """The hosts of the run by the launcher's names, a line each, where there are several."""
        return self.path / "hosts"

    @property
    def port(self) -> Path:
        """Where the first rank waits for the others, if the scheduler's variables do not say."""
        return self.path / "port"

    @property
    def launcher_log(self) -> Path:
        """What the command that starts the ranks on several nodes said."""
        return self.path / "launcher.log"

    @property
    def sampled(self) -> Path:
        """UUIDs of the GPUs to be sampled on each host, as JSON; absent without GPUs."""
        return self.path / "sampled.json"

    def samples(self, host: str) -> Path:
        """What NVML's sampler on a host saw."""
        return self.path / f"samples-{host}.jsonl"

    def environment(self, name: str) -> Path:
        """What a node found out about itself (records.Environment), by the launcher's name."""
        return self.path / f"environment-{name}.json"

    def host(self, rank: int) -> Path:
        """The name of the host that the rank was started on."""
        return self.path / f"rank-{rank}.host"

    def output(self, rank: int) -> Path:
        """What the rank printed."""
        return self.path / f"rank-{rank}.log"

    def exit(self, rank: int) -> Path:
        """How the rank's process ended (records.RankExit)."""
        return self.path / f"rank-{rank}.exit.json"

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
        """What ended the rank (records.RankFailure)."""
        return self.path / f"rank-{rank}.failure.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSamples:
    """The file that a sampler on one node of a run left."""

    host: str
    path: Path
    uuids: tuple[str, ...]
    """The devices that it was asked for."""


def read_progress(directory: RunDirectory) -> tuple[str, int, int] | None:
    """How far rank 0 says it is: stage, done, total; None where it said nothing yet."""
    try:
        stage, done, total = directory.progress.read_text(encoding="utf-8").split("\t")
    except (OSError, ValueError):
        return None
    return stage, int(done), int(total)


def write_atomically(path: Path, text: str) -> None:
    """Write a file that readers see whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def stderr_path(samples: Path) -> Path:
    """Where the sampler of a samples file leaves its error messages."""
    return samples.with_name(f"{samples.name}.stderr")
