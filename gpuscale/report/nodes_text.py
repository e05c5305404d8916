"""What a look at the nodes of a job saw, for the terminal."""

from collections.abc import Iterator, Sequence

from gpuscale.nodes import NodeFinding
from gpuscale.records import NodeProbe
from gpuscale.report.screen import table
from gpuscale.units import format_bytes, format_seconds


def nodes_text(
    probes: Sequence[NodeProbe], findings: Sequence[NodeFinding], *, message_bytes: int
) -> str:
    """A table of the nodes and one line for each finding, without a line break at its end."""
    return "\n".join(_lines(probes, findings, message_bytes))


def _lines(
    probes: Sequence[NodeProbe], findings: Sequence[NodeFinding], message_bytes: int
) -> Iterator[str]:
    rows = [
        [
            probe.host,
            format_seconds(max(probe.compute_s)),
            *(_rate(probe, place, message_bytes) for place in range(len(probes))),
        ]
        for probe in probes
    ]
    headers = ["node", "compute", *(f"to {probe.host}" for probe in probes)]
    yield table(headers, rows, left=headers)
    yield ""
    yield (
        "compute: time for a product of matrices, of the slowest GPU where there are several; "
        f"links: {format_bytes(message_bytes)} and a receipt"
    )
    if findings:
        yield "1 problem" if len(findings) == 1 else f"{len(findings)} problems"
        yield from (f"  {finding.text}" for finding in findings)
    elif len(probes) == 1:
        yield "a single node: nothing to compare it with"
    elif len(probes) == 2:
        yield "both nodes are alike, and so are both ways of their link; a third would tell more"
    else:
        yield "no node and no link is slow beside the others"


def _rate(probe: NodeProbe, place: int, message_bytes: int) -> str:
    for send in probe.sends:
        if send.to == place:
            return f"{format_bytes(round(message_bytes / send.time_s))}/s"
    return "–"
