"""In which order identical and faulty measurements are made, and what is held against what."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuscale.records import CauseKind, Configuration, Fault

RUNS_PER_BLOCK = 3
BASELINE_BLOCKS = 2
_SIZES = (0.2, 0.4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Runs that stand for one night: so many on each number of GPUs, in turn.

    A clean block is held against the clean blocks before it, if there are enough, and then
    belongs to what later blocks are held against; a faulty one does not.
    """

    fault: Fault | None = None


def possible_faults(
    configuration: Configuration, gpus: Sequence[int]
) -> tuple[tuple[Fault, ...], tuple[str, ...]]:
    """The faults that can be tried, each in two sizes, and those that cannot, with the reason."""
    not_tried = ["slow link: needs two hosts, and a link between them that can be limited"]
    faults = [
        Fault(name="data stall", size=s, injection="data", kind=CauseKind.DATA) for s in _SIZES
    ]
    if configuration.strategy == "ddp" and max(gpus) > 1:
        faults += [
            Fault(name="slow rank", size=s, injection="slow-rank", kind=CauseKind.SLOW_RANK)
            for s in _SIZES
        ]
    else:
        not_tried.insert(0, "slow rank: needs ddp on 2 GPUs or more")
    faults += [
        Fault(name="slower compute", size=s, injection="compute", kind=CauseKind.COMPUTE)
        for s in _SIZES
    ]
    return tuple(faults), tuple(not_tried)


def injection_text(fault: Fault, *, step_time_s: float, gpus: Sequence[int]) -> str:
    """The text of `--inject` for a fault; of several ranks the last is the slow one."""
    match fault.injection:
        case "data":
            return f"data={fault.size * step_time_s * 1e3:.3f}ms"
        case "slow-rank":
            return f"slow-rank={max(gpus) - 1}:{1 + fault.size:g}"
        case "compute":
            return f"compute={1 + fault.size:g}"


def blocks(faults: Sequence[Fault], *, pairs: int, trials: int) -> Iterator[Block]:
    """The blocks in their order: faulty ones are spread over the time of the clean ones.

    Args:
        faults: Those to be tried.
        pairs: Clean blocks that are held against those before them.
        trials: Of each fault.
    """
    for _ in range(BASELINE_BLOCKS):
        yield Block()
    faulty = [Block(fault=fault) for _ in range(trials) for fault in faults]
    done = 0
    for pair in range(1, pairs + 1):
        yield Block()
        due = len(faulty) * pair // pairs
        yield from faulty[done:due]
        done = due
