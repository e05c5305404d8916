"""What one job is to do, with every default filled in."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuscale.clusters import ClusterProfile
from gpuscale.clusters.job_words import time_limit_s
from gpuscale.submission.allocation import Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job on a cluster: what it asks the scheduler for, measures and compares with."""

    profile: ClusterProfile
    named: str
    """The profile as whoever asks for the job names it: a name or a path."""
    options: Mapping[str, str]
    """The options that were given, such as `--runs`, and their values."""
    allocation: Allocation
    gpus: tuple[int, ...]
    runs: int
    baseline: str | None
    judged_gpus: tuple[int, ...]
    """The numbers of GPUs that are judged; empty where there is no baseline."""
    partition: str | None
    account: str | None
    time_limit: str
    """As `HH:MM:SS`."""
    modules: tuple[str, ...] | None
    """None where whoever submits the script must name them."""

    @property
    def limit_s(self) -> int:
        """The time limit in seconds."""
        return time_limit_s(self.time_limit)

    @property
    def job_name(self) -> str:
        """What the scheduler calls the job."""
        return f"gpuscale-{self.profile.name}"
