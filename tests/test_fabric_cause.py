"""Ports as a cause: only of communication between nodes, and only if it was not so before."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import results_text
from builders.causes import diagnosed
from builders.nights import Fault, Night, results_of_night
from changing import replace
from command_line import gpuscale

from gpuscale.judge.baseline import baseline_from_results
from gpuscale.judge.diagnose.symptoms import port_symptoms
from gpuscale.records import Cause, CauseKind, NodeEvidence, Results
from gpuscale.records.probes import Port
from gpuscale.reports.cause_evidence import evidence
from gpuscale.reports.cause_words import headline

SLOW_LINK = Fault(communication_s=0.03, gpus=frozenset({4}))
OTHER = Port(name="mlx5_0 port 1", kind="infiniband", state="active", rate_gbit_s=400)
PORT = replace(OTHER, name="mlx5_1 port 1", pci_address="0000:c1:00.0", pcie_width=16, width=4)
TCP = Port(name="TCP", kind="tcp", growth={"RetransSegs": 40})
AGAIN, TWICE = {"RetransSegs": 60}, {"RetransSegs": 120}
SICK = replace(PORT, rate_gbit_s=200, growth={"symbol_error": 1204})
UNKNOWN = replace(PORT, rate_gbit_s=None, absent={"Permission denied": ("symbol_error",)})


def night(
    job: str, *ports_of_n2: Port, hosts: Sequence[str] = ("n1", "n2"), **options: Any
) -> Results:
    """A job on two nodes of two GPUs; the ports of the second node may be sick."""
    made = results_of_night(Night(job=job, runs=6, **{"gpus_per_node": 2, **options}))
    names = dict(zip(("node1", "node2"), hosts, strict=True))
    ports = ((OTHER, PORT, TCP), (OTHER, *ports_of_n2))
    nodes = tuple(NodeEvidence(host=h, ports=p) for h, p in zip(hosts, ports, strict=True))
    runs = []
    for run in made.runs:
        ranks = tuple(replace(rank, host=names[rank.host]) for rank in run.ranks)
        runs.append(replace(run, nodes=nodes, ranks=ranks))
    return replace(made, runs=tuple(runs))


def cause(before: Results, now: Results) -> Cause:
    """The first cause of the row on 4 GPUs, compared with a baseline of the first results."""
    baseline = baseline_from_results([before], name="nightly", cluster="ARC4")
    return diagnosed(baseline, now)[4].causes[0]


def test_a_verdict_ends_with_the_port_that_is_slower_than_before(tmp_path: Path) -> None:
    before, now = night("then", PORT, TCP), night("now", SICK, TCP, fault=SLOW_LINK)
    for name, results in (("then", before), ("now", now)):
        (tmp_path / f"{name}.jsonl").write_text(results_text(results))
    answer = gpuscale("compare", "then.jsonl", "now.jsonl", cwd=tmp_path)
    assert answer.returncode == 1, answer.stderr
    text = " ".join(answer.stdout.split())
    assert "exposed all-reduce +30 ms (n2 mlx5_1 port 1: rate 400 → 200 Gb/s; 1 more)" in text
    errors = "rate 400 → 200 Gb/s, +1,204 symbol errors a run, none before"
    assert f"· n2 mlx5_1 port 1: {errors}" in text
    assert "· counters are the host's: traffic of other jobs may be in them" in text
    assert "check cables, switch ports and adapters of n2" in text


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        (PORT, SICK, "rate 400 → 200 Gb/s"),
        (PORT, replace(PORT, width=1), "4 → 1 lanes"),
        (PORT, replace(PORT, pcie_width=8), "PCIe x16 → x8"),
        (PORT, replace(PORT, state="vanished"), "active → vanished"),
        (
            replace(PORT, growth={"link_downed": 1}),
            replace(PORT, growth={"link_downed": 9}, at_least=("link_downed",)),
            "at least +9 link downs a run, 1 before",
        ),
        (TCP, replace(TCP, growth={"RetransSegs": 2995}), "+2,995 retransmissions"),
        # The fewest that are named: a least number for each counter, and twice as many as before.
        (PORT, replace(PORT, growth={"symbol_error": 10}), "+10 symbol errors a run, none before"),
        (replace(TCP, growth=AGAIN), replace(TCP, growth=TWICE), "+120 retransmissions a run, 60"),
    ],
)
def test_what_is_worse_about_a_port_is_named(before: Port, now: Port, text: str) -> None:
    found = cause(night("then", before), night("now", now, fault=SLOW_LINK))
    assert found.kind is CauseKind.FABRIC
    assert text in headline(found)
    assert evidence(found)[0].startswith(f"n2 {now.name}: {text}")


def test_a_port_that_a_node_lacks_is_named() -> None:
    found = cause(night("then", PORT), night("now", fault=SLOW_LINK))
    assert evidence(found) == ("n2 mlx5_1 port 1: active → absent",)


def test_a_port_whose_state_changes_between_runs_is_given_that_of_the_last_run() -> None:
    def nodes(*states: str) -> list[NodeEvidence]:
        ports = [replace(PORT, state=state) for state in states]
        return [NodeEvidence(host="n2", ports=(OTHER, port)) for port in ports]

    before = nodes("active", "active_defer", "up")
    (down,) = port_symptoms(before, nodes("vanished", "init", "down"))
    assert (down.fact, down.now, down.usual) == ("state", "down", "up")
    (absent,) = port_symptoms(before, [NodeEvidence(host="n2", ports=(OTHER,))])
    assert (absent.fact, absent.now, absent.usual) == ("state", "absent", "up")


def test_a_port_of_another_node_than_before_is_compared_with_its_namesakes() -> None:
    elsewhere = night("then", PORT, hosts=("n5", "n6"))
    found = cause(elsewhere, night("now", SICK, fault=SLOW_LINK))
    assert headline(found).endswith("(n2 mlx5_1 port 1: rate 400 → 200 Gb/s; 1 more)")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (SICK, SICK),
        (UNKNOWN, SICK),
        (SICK, UNKNOWN),
        (SICK, PORT),
        (PORT, replace(PORT, growth={"symbol_error": 9})),
        (replace(TCP, growth=AGAIN), replace(TCP, growth={"RetransSegs": 119})),
    ],
)
def test_a_port_that_is_as_it_was_or_unknown_is_no_cause(before: Port, now: Port) -> None:
    found = cause(night("then", before), night("now", now, fault=SLOW_LINK))
    assert (found.kind, evidence(found)) == (CauseKind.COMMUNICATION, ())


def test_a_sick_port_is_no_cause_of_lost_computing_or_within_a_node() -> None:
    for fault, gpus_per_node, kind in (
        (Fault(computing=1.3, gpus=frozenset({4})), 2, CauseKind.COMPUTE),
        (SLOW_LINK, 4, CauseKind.COMMUNICATION),
    ):
        before = night("then", PORT, gpus_per_node=gpus_per_node)
        now = night("now", SICK, fault=fault, gpus_per_node=gpus_per_node)
        assert cause(before, now).kind is kind


def test_of_many_ports_the_first_are_named_and_the_others_counted() -> None:
    well = [replace(PORT, name=f"mlx5_{number} port 1") for number in range(1, 9)]
    sick = [replace(port, rate_gbit_s=200) for port in well]
    found = evidence(cause(night("then", *well), night("now", *sick, fault=SLOW_LINK)))
    assert (len(found), found[-1]) == (4, "and 5 more ports")
