"""What a launcher across nodes needs from the program that starts processes there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuscale.launch.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What every rank of a run needs of its node."""

    cores_per_rank: int | None
    """None for all cores of the node."""
    crowded: bool = False
    """Whether ranks may share cores: there are more of them than the nodes have."""
    independent: bool = False
    """Whether the others go on when one fails."""


class Scheduler(Protocol):
    """One way to start a program several times on the hosts of a job."""

    @property
    def name(self) -> str:
        """The word for it on the command line and in results."""
        ...

    def hosts(self) -> tuple[str, ...]:
        """The hosts of the job, in the order in which ranks are laid on them.

        Raises:
            UsageError: there is no job here, or its program is missing.
        """
        ...

    def arguments(self, program: Sequence[str], placement: Placement, demand: Demand) -> list[str]:
        """The command line that starts `program` once for each rank of the placement."""
        ...

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The environment for that command."""
        ...
