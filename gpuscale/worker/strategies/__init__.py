"""The ways to make a case parallel, one file each; a new one is added to `STRATEGIES`."""

from collections.abc import Callable

from gpuscale.errors import CaseError
from gpuscale.records import RunRequest
from gpuscale.worker.strategies.base import Strategy
from gpuscale.worker.strategies.ddp import DistributedDataParallelStrategy
from gpuscale.worker.strategies.dp import DataParallelStrategy

__all__ = ["STRATEGIES", "Strategy", "strategy_for"]

STRATEGIES: dict[str, Callable[[RunRequest], Strategy]] = {
    "ddp": DistributedDataParallelStrategy,
    "dp": DataParallelStrategy,
}


def strategy_for(request: RunRequest) -> Strategy:
    """The strategy that the request names, joined to its process group.

    Raises:
        CaseError: there is no such strategy.
    """
    try:
        strategy = STRATEGIES[request.configuration.strategy]
    except KeyError:
        known = ", ".join(sorted(STRATEGIES))
        raise CaseError(
            f"no strategy '{request.configuration.strategy}'; there are {known}"
        ) from None
    return strategy(request)
