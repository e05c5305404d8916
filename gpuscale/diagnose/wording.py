"""The words and numbers of causes."""

from collections.abc import Iterable, Sequence

from gpuscale.diagnose.laggards import Laggards
from gpuscale.diagnose.steps import Rank
from gpuscale.diagnose.symptoms import Symptom
from gpuscale.units import significant

_MOST_RANKS = 8


def duration(seconds: float) -> str:
    """Seconds with two significant digits, since noise leaves no more: `14 ms`, `−0.32 ms`."""
    sign = "−" if seconds < 0 else ""
    size = abs(seconds)
    if size >= 1:
        return f"{sign}{significant(size, 2)} s"
    if size >= 1e-4 or size == 0:
        return f"{sign}{significant(size * 1e3, 2)} ms"
    return f"{sign}{significant(size * 1e6, 2)} µs"


def added(seconds: float) -> str:
    """The same with a plus: `+14 ms`."""
    return f"+{duration(seconds)}" if seconds >= 0 else duration(seconds)


def then_and_now(then_s: float, now_s: float, *, on: str = "") -> str:
    """`35 ms a step (baseline: 21 ms)`, or `35 ms a step on rank 0 of 2 (baseline: 21 ms)`."""
    where = f" on {on}" if on else ""
    return f"{duration(now_s)} a step{where} (baseline: {duration(then_s)})"


def from_to(then_s: float, now_s: float) -> str:
    """`21 ms → 35 ms`."""
    return f"{duration(then_s)} → {duration(now_s)}"


def rank_name(rank: Rank) -> str:
    """`rank 2 (node1, GPU-ab12…)`."""
    return f"rank {rank.rank} ({', '.join((rank.host, *rank.device_uuids))})"


def laggards_name(laggards: Laggards) -> str:
    """`rank 2 (node1, GPU-ab12…)`, `all 4 ranks of node3`, `ranks 1 and 5`."""
    ranks = laggards.ranks
    if not ranks:
        return "the slowest rank"
    if laggards.is_whole_host:
        return f"all {len(ranks)} ranks of {ranks[0].host}"
    if len(ranks) == 1:
        return rank_name(ranks[0])
    return f"ranks {numbers(rank.rank for rank in ranks)}"


def laggards_short(laggards: Laggards) -> str:
    """The same in a few words, for a headline."""
    ranks = laggards.ranks
    if laggards.is_whole_host:
        return f"all ranks of {ranks[0].host}"
    if len(ranks) == 1:
        return f"rank {ranks[0].rank}"
    return f"ranks {numbers(rank.rank for rank in ranks)}" if ranks else "slowest rank"


def numbers(values: Iterable[int]) -> str:
    """`1, 2 and 4`, each once and in order."""
    known = sorted(set(values))
    if len(known) > _MOST_RANKS:
        return f"{', '.join(map(str, known[:_MOST_RANKS]))} and {len(known) - _MOST_RANKS} more"
    if len(known) < 2:
        return "".join(map(str, known))
    return f"{', '.join(map(str, known[:-1]))} and {known[-1]}"


def gpus_named(counts: Iterable[int]) -> str:
    """`1 GPU`, `2 and 4 GPUs`."""
    known = sorted(set(counts))
    return f"{numbers(known)} GPU{'' if known == [1] else 's'}"


def symptom_lines(symptoms: Sequence[Symptom]) -> tuple[str, ...]:
    """One line for each device with all that is wrong with it."""
    texts: dict[tuple[str, str | None], list[str]] = {}
    for symptom in symptoms:
        texts.setdefault((symptom.uuid, symptom.host), []).append(symptom.text)
    return tuple(
        f"{device_name(uuid, host)}: {'; '.join(found)}" for (uuid, host), found in texts.items()
    )


def device_name(uuid: str, host: str | None) -> str:
    """`GPU-ab12… on node1`; the UUID gets the prefix that nvidia-smi prints."""
    name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    return name if host is None else f"{name} on {host}"
