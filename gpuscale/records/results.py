"""What one invocation measured."""

from dataclasses import dataclass

from gpuscale.records.environment import Environment
from gpuscale.records.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """A results file in memory: its header and its runs, in the order they were measured."""

    created_at: str
    """ISO 8601 with offset."""
    gpuscale_version: str
    environment: Environment
    injections: tuple[str, ...] = ()
    """Faults that were made on purpose: such results never pass for real ones."""
    runs: tuple[Run, ...]

    @property
    def allocation(self) -> str:
        """Which job on which nodes the file was begun in: the job id, or host and time."""
        return self.environment.job_id or f"{self.environment.host} {self.created_at}"

    def allocation_of(self, run: Run) -> str:
        """The same of one of the runs, which a resumed file may have from another job."""
        return run.job_id or self.allocation
