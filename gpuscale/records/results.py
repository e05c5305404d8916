"""What one invocation measured."""

from gpuscale.records.environment import Environment
from gpuscale.records.record import Moment, Name, Record
from gpuscale.records.run import Run


class Results(Record, frozen=True, kw_only=True):
    """A results file in memory: its header and its runs, in the order they were measured."""

    created_at: Moment
    """ISO 8601 with offset."""
    gpuscale_version: Name
    environment: Environment
    injections: tuple[Name, ...] = ()
    """Faults that were made on purpose: such results never pass for real ones."""
    runs: tuple[Run, ...] = ()

    @property
    def allocation(self) -> str:
        """The job that the file was begun in: its id, or host and time."""
        return self.environment.job_id or f"{self.environment.host} {self.created_at}"

    def allocation_of(self, run: Run) -> str:
        """The same of one of the runs, which a resumed file may have from another job."""
        return run.allocation or self.allocation
