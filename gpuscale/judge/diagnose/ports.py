"""Find slow network ports by comparison with the baseline or with similar ports."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any

from gpuscale.base.port_counters import PORT_COUNTERS
from gpuscale.judge.diagnose.evidence import RowEvidence
from gpuscale.judge.diagnose.pairs import NodeFinding
from gpuscale.records import NodeEvidence, NodeProbe
from gpuscale.records.cause import PortSymptom
from gpuscale.records.node_evidence import Port

_MORE = 2
"""Factor by which a counter must grow more than in any run of the baseline."""
_FACTS = {
    "rate_gbit_s": "runs at {:g} Gb/s, its neighbours at {:g}",
    "width": "has {} lanes, its neighbours {}",
    "pcie_gt_s": "is on PCIe at {:g} GT/s, its neighbours at {:g}",
    "pcie_width": "is on PCIe x{}, its neighbours on x{}",
}
"""Fields of a port, with the message if the value is lower than that of the port's neighbours."""
_Ports = dict[tuple[str, str], list[Port]]
"""States of each port, one for each run, keyed by host and port name."""


def port_symptoms(row: RowEvidence) -> Iterator[PortSymptom]:
    """Yield the ports that are slower than before, or have more errors; nothing on a single node.

    A port is compared with itself in the baseline, or else with ports of the same name on other
    hosts.
    """
    if row.point.nodes < 2:
        return
    before, after = _ports_of(row.point.nodes_before), _ports_of(row.point.nodes_after)
    for (host, name), ports in after.items():
        namesakes = [port for (_, other), them in before.items() if other == name for port in them]
        if usual := before.get((host, name), namesakes):
            yield from _changes(partial(PortSymptom, host=host, port=name), ports, usual)
    for host, name in before.keys() - after.keys():
        gone = before[host, name][-1]
        if gone.pci_address is not None and any(host == other for other, _ in after):
            yield PortSymptom(host=host, port=name, fact="state", now="absent", usual=gone.state)


def find_port_faults(nodes: Sequence[NodeProbe]) -> Iterator[NodeFinding]:
    """Yield ports that are down or slower than their neighbours, and GPUs far from their CPUs."""
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


def _ports_of(nodes: Sequence[NodeEvidence]) -> _Ports:
    found: _Ports = {}
    for node in nodes:
        for port in node.ports:
            found.setdefault((node.host, port.name), []).append(port)
    return found


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
    """Compare a port with ports of the same name on other nodes, or else with similar ones here."""
    alike = [(other, each) for other in nodes for each in other.ports if each.model == port.model]
    namesakes = [each for other, each in alike if other is not node and each.name == port.name]
    neighbours = namesakes or [each for other, each in alike if other is node and each is not port]
    working = [each for each in neighbours if each.is_usable]
    if port.duplex == "half":
        yield "runs in half duplex"
    if port.is_usable:
        for fact, now, usual in _lower_facts([port], working, statistics.median_high):
            yield _FACTS[fact].format(now, usual)
    # Ethernet without a cable is normal, unless the other nodes have one.
    elif 2 * len(working) > len(neighbours) if namesakes else port.kind != "ethernet":
        yield f"is {port.state}"


def _lower_facts(
    ports: Sequence[Port], usual: Sequence[Port], typical: Callable[[list[Any]], Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield each field whose lowest value is below the typical usual value, with both values."""
    for fact in _FACTS:
        now, then = _known(ports, attrgetter(fact)), _known(usual, attrgetter(fact))
        if now and then and min(now) < typical(then):
            yield fact, min(now), typical(then)


def _known(ports: Sequence[Port], of: Callable[[Port], Any]) -> list[Any]:
    return [value for port in ports if (value := of(port)) is not None]
