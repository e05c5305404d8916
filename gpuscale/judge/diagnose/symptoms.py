"""Find abnormal counters of GPUs and ports, compared with the baseline or with similar devices."""

import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

import msgspec

from gpuscale.base.grouping import by_key
from gpuscale.judge.diagnose.slow_links import NodeFinding
from gpuscale.records import GpuSummary, NodeEvidence, NodeProbe, Run
from gpuscale.records.cause import CauseKind, ComparedWith, DeviceSymptom, PortSymptom
from gpuscale.records.gpu_and_port_counters import NUMBERS, PORT_COUNTERS, fold
from gpuscale.records.probes import Port

_CLOCK_DROP = 0.03
"""Smallest relative drop in clock frequency that counts as a symptom; usual drops are smaller."""
_REASON_SHARE = 0.1
"""A clock event reason is a symptom if its share of the samples grew by at least this much."""
_HARMLESS_REASONS = frozenset({"gpu_idle"})

_EXPLAINS = 0.5
"""Fraction of a slowdown that lower clocks must account for to explain it."""


class _Low(NamedTuple):
    """A counter that indicates a fault if its value is lower than usual."""

    counter: str
    kind: CauseKind
    drop: float = 0.0
    """Fraction by which the counter must be below the usual value."""
    most: str | None = None
    """Counter with the maximum of the hardware, which replaces an unknown usual value."""


_LOW_CLOCKS = (
    _Low("sm_clock_mean_mhz", CauseKind.CLOCKS, _CLOCK_DROP),
    _Low("memory_clock_mean_mhz", CauseKind.CLOCKS, _CLOCK_DROP),
    _Low("power_limit_w", CauseKind.CLOCKS),
)
_LOW_LINKS = (
    _Low("pcie_width", CauseKind.PCIE, most="pcie_max_width"),
    _Low("pcie_generation", CauseKind.PCIE, most="pcie_max_generation"),
    _Low("nvlink_active_min", CauseKind.NVLINK),
    _Low("xgmi_active_min", CauseKind.XGMI),
)
_ERRORS = {
    "nvlink_errors": CauseKind.NVLINK,
    "xgmi_errors": CauseKind.XGMI,
    "ecc_uncorrected": CauseKind.MEMORY_ERRORS,
}
"""Kind of symptom reported if a counter shows more errors than before."""
_SLOWING = ("sm_clock_mean_mhz", "memory_clock_mean_mhz")
"""Clock counters; computing speed is assumed to be proportional to each of them."""


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """Counters and clock events of one or more devices, combined over several runs."""

    values: Mapping[str, float]
    clock_event_reasons: Mapping[str, float]
    """Mean fraction of samples with each clock event reason, by reason."""

    @classmethod
    def of(cls, summaries: Sequence[GpuSummary]) -> "_State":
        folded = {name: fold(name, (s.values.get(name) for s in summaries)) for name in NUMBERS}
        reasons = [s.clock_event_reasons for s in summaries if s.clock_event_reasons is not None]
        return cls(
            values={name: value for name, value in folded.items() if value is not None},
            clock_event_reasons={
                name: statistics.fmean(shares.get(name, 0.0) for shares in reasons)
                for name in sorted({name for shares in reasons for name in shares})
            },
        )


def symptoms_of(
    before: Sequence[Run], after: Sequence[Run], places: Mapping[str, str]
) -> tuple[DeviceSymptom, ...]:
    """Find abnormal counters of devices in the results; `places` maps device UUIDs to hosts.

    A device is compared with itself in the baseline; if the baseline lacks the device, with all
    devices of the baseline; if the baseline has no samples, with other devices in the results.
    """
    old, new = _summaries(before), _summaries(after)
    ranks = (rank for run in after for rank in run.ranks)
    hosts = {**places, **{uuid: rank.host for rank in ranks for uuid in rank.device_uuids}}
    known = _State.of([s for summaries in old.values() for s in summaries]) if old else None
    beside = ComparedWith.BASELINE if old else ComparedWith.OTHER_GPUS
    found: list[DeviceSymptom] = []
    for uuid, summaries in new.items():
        state, itself = _State.of(summaries), _State.of(old[uuid]) if uuid in old else None
        others = [s for other in new if other != uuid for s in new[other]]
        usual = itself or known or (_State.of(others) if others else None)
        symptom = partial(DeviceSymptom, uuid=uuid, host=hosts.get(uuid), beside=beside)
        found += _low(_LOW_CLOCKS, symptom, state, usual)
        found += _clock_events(symptom, state, usual)
        found += _low(_LOW_LINKS, symptom, state, usual)
        errors = {} if itself is None else itself.values
        found += (
            symptom(kind=kind, counter=counter, now=now)
            for counter, kind in _ERRORS.items()
            if (now := state.values.get(counter, 0)) > errors.get(counter, 0)
        )
    return tuple(found)


def explaining_clocks(
    symptoms: Sequence[DeviceSymptom], uuids: Collection[str], *, lost_s: float, of_s: float
) -> tuple[DeviceSymptom, ...]:
    """Return the clock symptoms of `uuids` if they explain why `of_s` grew by `lost_s`, else ()."""
    if not (clocks := [s for s in symptoms if s.kind is CauseKind.CLOCKS and s.uuid in uuids]):
        return ()
    drops = dict.fromkeys(uuids, 0.0)
    for symptom in clocks:
        if symptom.counter in _SLOWING and symptom.usual is not None:
            drops[symptom.uuid] = max(drops[symptom.uuid], symptom.usual / symptom.now - 1)
    slowdown = lost_s / of_s if of_s > 0 else math.inf
    return tuple(clocks) if statistics.median(drops.values()) >= _EXPLAINS * slowdown else ()


def _summaries(runs: Sequence[Run]) -> dict[str, list[GpuSummary]]:
    """Return the device summaries of all runs, by device UUID; omit summaries without samples."""
    summaries = (summary for run in runs for summary in run.gpu_summaries)
    return by_key((summary.uuid, summary) for summary in summaries if summary.samples)


def _low(
    watched: Sequence[_Low], symptom: partial[DeviceSymptom], state: _State, usual: _State | None
) -> Iterator[DeviceSymptom]:
    for counter, kind, drop, most in watched:
        now = state.values.get(counter)
        # No GPU that computes has a clock or a power limit of 0.
        if now is None or (now == 0 and kind is CauseKind.CLOCKS):
            continue
        found = partial(symptom, kind=kind, counter=counter, now=now)
        then = None if usual is None else usual.values.get(counter)
        if then is None and most is not None:
            found, then = partial(found, beside=ComparedWith.MOST), state.values.get(most)
        if then is not None and now < (1 - drop) * then:
            yield found(usual=then)


def _clock_events(
    symptom: partial[DeviceSymptom], state: _State, usual: _State | None
) -> Iterator[DeviceSymptom]:
    if usual is None:
        return
    for reason, share in state.clock_event_reasons.items():
        then = usual.clock_event_reasons.get(reason, 0.0)
        if reason not in _HARMLESS_REASONS and share - then >= _REASON_SHARE:
            yield symptom(
                kind=CauseKind.CLOCKS,
                counter="clock_event_reasons",
                now=share,
                usual=then,
                reason=reason,
                temperature_max_c=state.values.get("temperature_max_c"),
            )


_MORE = 2
"""A port counter that grows by this multiple of its largest growth in the baseline is a symptom."""
_FACTS = {
    "rate_gbit_s": "runs at {:g} Gb/s, others like it at {:g}",
    "width": "has {} lanes, others like it {}",
    "pcie_gt_s": "is on PCIe at {:g} GT/s, others like it at {:g}",
    "pcie_width": "is on PCIe x{}, others like it on x{}",
}
"""Fields of a port, each with the message for a value lower than that of comparable ports."""


def port_symptoms(
    nodes_before: Sequence[NodeEvidence], nodes_after: Sequence[NodeEvidence]
) -> Iterator[PortSymptom]:
    """Yield symptoms of ports: down, missing, slower or with more errors than in the baseline.

    A port is compared with itself in the baseline, or else with baseline ports of the same name.
    """
    before, after = _ports_of(nodes_before), _ports_of(nodes_after)
    for (host, name), ports in after.items():
        namesakes = [port for (_, other), them in before.items() if other == name for port in them]
        if usual := before.get((host, name), namesakes):
            yield from _changes(partial(PortSymptom, host=host, port=name), ports, usual)
    for host, name in before.keys() - after.keys():
        gone = before[host, name][-1]
        if gone.pci_address is not None and any(host == other for other, _ in after):
            yield PortSymptom(host=host, port=name, fact="state", now="absent", usual=gone.state)


def find_port_faults(nodes: Sequence[NodeProbe]) -> Iterator[NodeFinding]:
    """Yield faults: ports that are down or slow, and GPUs far from the CPUs of their ranks."""
    for node in nodes:
        for port in node.ports:
            for fault in _faults(node, port, nodes):
                text = f"{node.host} {port.name} {fault}: check cable, switch port and adapter"
                yield NodeFinding("port", (node.host,), 1.0, text)
        own, gpus = node.cpu_numa_nodes, enumerate(node.gpu_numa_nodes)
        far = [str(gpu) for gpu, place in gpus if own and place is not None and place not in own]
        if far:
            text = (
                f"{node.host}: ranks run on CPUs of NUMA node {', '.join(map(str, own))}, far from "
                f"GPU {', '.join(far)}: see how the scheduler binds tasks to CPUs"
            )
            yield NodeFinding("binding", (node.host,), 1.0, text)


def _ports_of(nodes: Sequence[NodeEvidence]) -> dict[tuple[str, str], list[Port]]:
    """Return the states of each port, one for each run, by host and port name."""
    return by_key(((node.host, port.name), port) for node in nodes for port in node.ports)


def _changes(
    symptom: partial[PortSymptom], ports: Sequence[Port], usual: Sequence[Port]
) -> Iterator[PortSymptom]:
    down = [port.state for port in ports if not port.is_usable]
    if down and all(port.is_usable for port in usual):
        yield symptom(fact="state", now=down[-1], usual=usual[-1].state)
    for fact, now, then in _lower_facts(ports, usual, min):
        yield symptom(fact=fact, now=now, usual=then)
    for counter in PORT_COUNTERS:
        growth = methodcaller("growth_of", counter.name)
        grown, before = _known(ports, growth), _known(usual, growth)
        if grown and before:
            mean = statistics.fmean(grown)
            if mean >= max(counter.least, _MORE * max(before)):
                yield symptom(
                    fact=counter.name,
                    now=round(mean),
                    usual=round(statistics.fmean(before)),
                    is_floor=any(counter.name in port.at_least for port in ports),
                )


def _faults(node: NodeProbe, port: Port, nodes: Sequence[NodeProbe]) -> Iterator[str]:
    """Yield a port's faults, judged by similar ports of other nodes or else of its own node."""
    alike = [(other, each) for other in nodes for each in other.ports if each.model == port.model]
    namesakes = [each for other, each in alike if other is not node and each.name == port.name]
    neighbours = namesakes or [each for other, each in alike if other is node and each is not port]
    working = [each for each in neighbours if each.is_usable]
    if port.is_usable:
        for fact, now, usual in _lower_facts([port], working, statistics.median_high):
            yield _FACTS[fact].format(now, usual)
    # Ethernet without a cable is normal, unless the other nodes have one.
    elif 2 * len(working) > len(neighbours) if namesakes else port.kind != "ethernet":
        yield f"is {port.state}"


def _lower_facts(
    ports: Sequence[Port], usual: Sequence[Port], typical: Callable[[list[Any]], Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (field, minimum in `ports`, `typical` of `usual`) wherever the minimum is lower."""
    for fact in _FACTS:
        now, then = _known(ports, attrgetter(fact)), _known(usual, attrgetter(fact))
        if now and then and min(now) < typical(then):
            yield fact, min(now), typical(then)


def _known(ports: Sequence[Port], of: Callable[[Port], Any]) -> list[Any]:
    return [value for port in ports if (value := of(port)) is not None]
