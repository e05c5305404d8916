"""Find the ports of nodes that are down or slow, and GPUs whose ranks run on far CPUs."""

import statistics
from collections.abc import Iterator, Sequence

from gpuscale.judge.diagnose.slow_nodes import NodeFinding
from gpuscale.records import NodeProbe
from gpuscale.records.port import Port

_FACTS = {
    "rate_gbit_s": "runs at {:g} Gb/s, its neighbours at {:g}",
    "width": "has {} lanes, its neighbours {}",
    "pcie_gt_s": "is on PCIe at {:g} GT/s, its neighbours at {:g}",
    "pcie_width": "is on PCIe x{}, its neighbours on x{}",
}
"""Fields of a port that should not be lower than its neighbours', with the texts if they are."""


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


def _faults(node: NodeProbe, port: Port, nodes: Sequence[NodeProbe]) -> Iterator[str]:
    """Compare a port with its namesakes on other nodes, or else with its likes on this one."""
    alike = [(other, each) for other in nodes for each in other.ports if each.model == port.model]
    namesakes = [each for other, each in alike if other is not node and each.name == port.name]
    neighbours = namesakes or [each for other, each in alike if other is node and each is not port]
    working = [each for each in neighbours if each.is_usable]
    if not port.is_usable:
        # Ethernet without a cable is normal, unless the other nodes have one.
        if 2 * len(working) > len(neighbours) if namesakes else port.kind != "ethernet":
            yield f"is {port.state}"
        return
    for fact, text in _FACTS.items():
        now = getattr(port, fact)
        usual = [value for each in working if (value := getattr(each, fact)) is not None]
        if now is not None and usual and now < statistics.median_high(usual):
            yield text.format(now, statistics.median_high(usual))
