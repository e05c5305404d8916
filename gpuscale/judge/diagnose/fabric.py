"""Find network ports that are slower than in the baseline, or that count more errors or waits."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any

from gpuscale.base.port_counters import PORT_COUNTERS
from gpuscale.judge.diagnose.evidence import RowEvidence
from gpuscale.records import NodeEvidence
from gpuscale.records.cause import PortSymptom
from gpuscale.records.port import Port

_MORE = 2
"""Factor by which a counter must grow more than in any run of the baseline."""
_FACTS = ("rate_gbit_s", "width", "pcie_gt_s", "pcie_width")
"""Fields of a port that should not be lower than before."""


def port_symptoms(row: RowEvidence) -> tuple[PortSymptom, ...]:
    """Return what is worse than before about the ports of the nodes; none on a single node."""
    point = row.point
    if point.nodes < 2:
        return ()
    return tuple(_symptoms(_ports_of(point.nodes_before), _ports_of(point.nodes_after)))


_Ports = dict[tuple[str, str], list[Port]]
"""A port in each run, by host and name."""


def _ports_of(nodes: Sequence[NodeEvidence]) -> _Ports:
    found: _Ports = {}
    for node in nodes:
        for port in node.ports:
            found.setdefault((node.host, port.name), []).append(port)
    return found


def _symptoms(before: _Ports, after: _Ports) -> Iterator[PortSymptom]:
    """Compare each port with itself in the baseline, or else with its namesakes on other hosts."""
    for (host, name), ports in after.items():
        namesakes = [port for (_, other), them in before.items() if other == name for port in them]
        if usual := before.get((host, name), namesakes):
            yield from _changes(partial(PortSymptom, host=host, port=name), ports, usual)
    for host, name in before.keys() - after.keys():
        gone = before[host, name][-1]
        if gone.pci_address is not None and any(host == other for other, _ in after):
            yield PortSymptom(host=host, port=name, fact="state", now="absent", usual=gone.state)


def _changes(
    symptom: partial[PortSymptom], ports: Sequence[Port], usual: Sequence[Port]
) -> Iterator[PortSymptom]:
    down = [port.state for port in ports if not port.is_usable]
    if down and all(port.is_usable for port in usual):
        yield symptom(fact="state", now=down[-1], usual=usual[-1].state)
    for fact in _FACTS:
        now, then = _known(ports, attrgetter(fact)), _known(usual, attrgetter(fact))
        if now and then and min(now) < min(then):
            yield symptom(fact=fact, now=min(now), usual=min(then))
    for counter in PORT_COUNTERS:
        growth = methodcaller("growth_of", counter.name)
        now, then = _known(ports, growth), _known(usual, growth)
        if now and then and statistics.fmean(now) >= max(counter.least, _MORE * max(then)):
            yield symptom(
                fact=counter.name,
                now=round(statistics.fmean(now)),
                usual=round(statistics.fmean(then)),
                is_floor=any(counter.name in port.at_least for port in ports),
            )


def _known(ports: Sequence[Port], of: Callable[[Port], Any]) -> list[Any]:
    return [value for port in ports if (value := of(port)) is not None]
