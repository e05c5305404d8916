"""Probe the nodes of a job: several launches of the ranks, and pairs of nodes in rounds."""

import re
from collections import Counter
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from gpuscale.base.devices import is_gpu
from gpuscale.judge.diagnose.pairs import second_look, tournament
from gpuscale.measure.launch import Launcher
from gpuscale.records import Configuration, NodeProbe
from gpuscale.records.probe import PAIR, PROBES, SEND, NodeProbeRequest, merged_probes

_DDP_BUCKET_MB, _FIRST_BUCKET_MB = 25, 1
_MIB = 1024**2
_CPU_RANKS = 2
_REPEATS = 5


def request_of(
    launcher: Launcher,
    names: Collection[str] | None,
    *,
    seconds: float,
    precision: str | None = None,
    configurations: Sequence[Configuration] = (),
    data_root: str | None = None,
    injections: tuple[str, ...] = (),
) -> NodeProbeRequest:
    """Return a request to probe a launcher's nodes, in these configurations' precision."""
    where = launcher.environment
    on_gpu = is_gpu(where.device)
    usual = Counter(each.precision for each in configurations).most_common(1)
    options = " ".join(each.strategy_options or "" for each in configurations)
    buckets = {*map(int, re.findall(r"bucket_cap_mb=(\d+)", options))} or {_DDP_BUCKET_MB}
    return NodeProbeRequest(
        device=where.device,
        names=tuple(name for name in PROBES if names is None or name in names),
        ranks_per_node=where.gpus_per_node if on_gpu else min(_CPU_RANKS, where.cores_per_node),
        seconds=seconds,
        message_bytes=tuple(size * _MIB for size in sorted({_FIRST_BUCKET_MB, *buckets})),
        repeats=_REPEATS,
        rounds=tournament(where.node_count),
        precision=precision or (usual[0][0] if usual else None),
        data_root=data_root,
        injections=injections,
    )


def probe_nodes(
    launcher: Launcher, request: NodeProbeRequest, *, launches: int
) -> tuple[NodeProbe, ...]:
    """Probe all nodes in several launches, since a fresh start may place memory differently.

    Pairs of nodes exchange messages in the first launch only; suspected nodes do so once more.
    """
    found = [launcher.probe(request)]
    if again := second_look(found[0]):
        pairs = tuple(name for name in request.names if name in (SEND, PAIR))
        found.append(launcher.probe(replace(request, names=pairs, rounds=again)))
    found += (launcher.probe(replace(request, rounds=())) for _ in range(launches - 1))
    return tuple(merged_probes(parts) for parts in zip(*found, strict=True))
