"""Starting ranks: one file per way of doing it."""

from collections.abc import Sequence
from typing import Protocol

from gpuscale.records import Environment, Run, RunRequest
from gpuscale.run_directory import NodeSamples


class Launcher(Protocol):
    """Starts all the ranks of a run and returns what they measured."""

    @property
    def environment(self) -> Environment:
        """The machine as the ranks see it."""
        ...

    def run(self, request: RunRequest) -> Run:
        """Make one run; what goes wrong in a rank is told in `Run.failure`, not raised.

        No rank is left when it returns.
        """
        ...

    def progress(self) -> tuple[str, int, int] | None:
        """How far the run under way is: stage, done, total; None where nothing is known."""
        ...

    def samples(self) -> Sequence[NodeSamples]:
        """What samplers on the nodes left in the last run, until the next run."""
        ...

    def close(self) -> None:
        """Delete what the last run left."""
        ...
