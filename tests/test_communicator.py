"""Changes of NCCL's connections: evidence if communication takes longer, and shown with phases."""

import pytest
from builders import CNN, phased_run, phases, results, shown_text
from changing import replace
from test_diagnose_causes import row, step

from gpuscale.judge.diagnose import lost_parts
from gpuscale.judge.diagnose.attribution import Step
from gpuscale.judge.diagnose.evidence import RowEvidence
from gpuscale.records import Communicator, NodeEvidence
from gpuscale.reports import cause_words

WELL = Communicator(
    version="NCCL 2.28.9+cuda13.0",
    adapters=("mlx5_0:1/IB", "mlx5_1:1/IB"),
    transports=("NET/IB", "P2P/CUMEM"),
    gpu_direct="on",
    ranks=16,
    channels=24,
    nvls_channels=16,
    rings="12 × 22/22 GB/s over NVL/PIX",
)


def nodes(**said: Communicator | None) -> tuple[NodeEvidence, ...]:
    return tuple(NodeEvidence(host=host, communicator=own) for host, own in said.items())


def with_nodes(
    after: Step, then: tuple[NodeEvidence, ...], now: tuple[NodeEvidence, ...]
) -> RowEvidence:
    known = row(after)
    point = replace(known.point, nodes_before=then, nodes_after=now)
    return replace(known, points={known.entry.key.gpus: point})


def evidence(
    then: tuple[NodeEvidence, ...], now: tuple[NodeEvidence, ...], after: Step | None = None
) -> list[str]:
    """What is said below the causes of a row."""
    known = with_nodes(after or step(communication_s=3.0), then, now)
    return [text for cause in lost_parts(known, ()) for text in cause_words.evidence(cause)]


@pytest.mark.parametrize(
    ("worse", "said"),
    [
        (replace(WELL, nvls_channels=0), ["NVLS on → off"]),
        (replace(WELL, nvls_channels=8), ["NVLS channels 16 → 8"]),
        (replace(WELL, gpu_direct="partly"), ["GDRDMA on → partly"]),
        (replace(WELL, channels=16), ["channels 24 → 16"]),
        (
            replace(WELL, transports=("NET/Socket", "P2P/CUMEM"), gpu_direct="off"),
            ["GDRDMA on → off", "transport between nodes NET/IB → NET/Socket"],
        ),
        (
            replace(WELL, transports=("NET/IB", "SHM")),
            ["transport inside nodes P2P/CUMEM → SHM"],
        ),
        (
            replace(WELL, rings="6 × 11/11 GB/s over PHB/SYS"),
            ["rings 12 × 22/22 GB/s over NVL/PIX → 6 × 11/11 GB/s over PHB/SYS"],
        ),
        # Compared with the other libraries, and often unknown.
        (replace(WELL, version=None), []),
        # A log cut short says nothing of what it has not.
        (Communicator(version=WELL.version), []),
        (WELL, []),
        (None, []),
    ],
)
def test_what_changed_is_evidence_if_communication_lost_time(
    worse: Communicator | None, said: list[str]
) -> None:
    then, now = nodes(n1=WELL, n2=WELL), nodes(n1=worse, n2=worse)
    assert evidence(then, now) == said
    assert not any("NVLS" in text for text in evidence(then, now, step(data_s=3.0)))
    assert evidence(nodes(n1=None), now) == []


def test_a_change_on_some_nodes_names_them() -> None:
    off = replace(WELL, gpu_direct="off")
    then = nodes(**{f"n{n}": WELL for n in range(1, 9)})
    assert evidence(then, nodes(n1=WELL, n2=WELL, n3=off)) == ["GDRDMA on → off on n3"]
    now = nodes(n1=WELL, n2=off, n3=off, n9=WELL)
    assert evidence(then, now) == ["GDRDMA on → off on 2 of 4 nodes"]
    assert evidence((*then, *nodes(n3=off)), now) == [], "it was so in an earlier run"


def test_the_phases_show_how_the_ranks_were_connected() -> None:
    known = replace(
        phased_run([phases(forward_s=0.01)] * 2, communication_s=0.01), nodes=nodes(n1=WELL)
    )
    text = " ".join(shown_text(results(known), phases=True).split())
    assert f"{known.key.label}: NCCL 2.28.9+cuda13.0: NVLS on, GDRDMA on, " in text
    assert "transport between nodes NET/IB, transport inside nodes P2P/CUMEM" in text
    without = shown_text(results(replace(known, nodes=nodes(n1=None))), phases=True)
    assert "NCCL 2.28" not in without
    # A command has no phases.
    alone = replace(known, configuration=replace(CNN, strategy="command"), ranks=(), windows=())
    assert "channels 24" in shown_text(results(alone), phases=True)
