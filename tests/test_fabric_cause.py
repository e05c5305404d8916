"""Ports as a cause: only of communication between nodes, and only if it was not so before."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import results_text
from builders.nights import Fault, Night, results_of_night
from changing import replace
from command_line import gpuscale

from gpuscale.records import NodeEvidence, Results
from gpuscale.records.ports import Port

SLOW_LINK = Fault(communication_s=0.03, gpus=frozenset({4}))
OTHER = Port(name="mlx5_0 port 1", kind="infiniband", state="active", rate_gbit_s=400)
PORT = replace(OTHER, name="mlx5_1 port 1", pci_address="0000:c1:00.0", pcie_width=16, width=4)
TCP = Port(name="TCP", kind="tcp", growth={"RetransSegs": 40})
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


def compared(folder: Path, before: Results, now: Results, *options: str) -> str:
    """The output of `gpuscale compare` with a baseline of the first results."""
    for name, results in (("then", before), ("now", now)):
        (folder / f"{name}.jsonl").write_text(results_text(results))
    record = ("baseline", "record", "then.jsonl", "-o", "base.json", "--cluster", "ARC4")
    recorded = gpuscale(*record, cwd=folder)
    assert recorded.returncode == 0, recorded.stderr
    answer = gpuscale("compare", "base.json", "now.jsonl", *options, cwd=folder)
    assert answer.returncode == 1, answer.stderr
    return answer.stdout


def cause(folder: Path, before: Results, now: Results) -> dict[str, Any]:
    """The first cause of the row on 4 GPUs."""
    document = json.loads(compared(folder, before, now, "--format", "json"))
    (entry,) = (entry for entry in document["entries"] if entry["gpus"] == 4)
    first: dict[str, Any] = entry["causes"][0]
    return first


def test_a_verdict_ends_with_the_port_that_is_slower_than_before(tmp_path: Path) -> None:
    before, now = night("then", PORT, TCP), night("now", SICK, TCP, fault=SLOW_LINK)
    text = " ".join(compared(tmp_path, before, now).split())
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
    ],
)
def test_what_is_worse_about_a_port_is_named(
    tmp_path: Path, before: Port, now: Port, text: str
) -> None:
    found = cause(tmp_path, night("then", before), night("now", now, fault=SLOW_LINK))
    assert found["kind"] == "fabric"
    assert text in found["headline"]
    assert found["evidence"][0].startswith(f"n2 {now.name}: {text}")


def test_a_port_that_a_node_lacks_is_named(tmp_path: Path) -> None:
    found = cause(tmp_path, night("then", PORT), night("now", fault=SLOW_LINK))
    assert found["evidence"] == ["n2 mlx5_1 port 1: active → absent"]


def test_a_port_of_another_node_than_before_is_compared_with_its_namesakes(tmp_path: Path) -> None:
    elsewhere = night("then", PORT, hosts=("n5", "n6"))
    found = cause(tmp_path, elsewhere, night("now", SICK, fault=SLOW_LINK))
    assert found["headline"].endswith("(n2 mlx5_1 port 1: rate 400 → 200 Gb/s; 1 more)")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (SICK, SICK),
        (UNKNOWN, SICK),
        (SICK, UNKNOWN),
        (SICK, PORT),
        (PORT, replace(PORT, growth={"symbol_error": 9})),
        (TCP, replace(TCP, growth={"RetransSegs": 79})),
    ],
)
def test_a_port_that_is_as_it_was_or_unknown_is_no_cause(
    tmp_path: Path, before: Port, now: Port
) -> None:
    found = cause(tmp_path, night("then", before), night("now", now, fault=SLOW_LINK))
    assert (found["kind"], found["evidence"]) == ("communication", [])


@pytest.mark.parametrize(
    ("fault", "gpus_per_node", "kind"),
    [(Fault(computing=1.3, gpus=frozenset({4})), 2, "compute"), (SLOW_LINK, 4, "communication")],
)
def test_a_sick_port_is_no_cause_of_lost_computing_or_within_a_node(
    tmp_path: Path, fault: Fault, gpus_per_node: int, kind: str
) -> None:
    before = night("then", PORT, gpus_per_node=gpus_per_node)
    now = night("now", SICK, fault=fault, gpus_per_node=gpus_per_node)
    assert cause(tmp_path, before, now)["kind"] == kind


def test_of_many_ports_the_first_are_named_and_the_others_counted(tmp_path: Path) -> None:
    well = [replace(PORT, name=f"mlx5_{number} port 1") for number in range(1, 9)]
    sick = [replace(port, rate_gbit_s=200) for port in well]
    found = cause(tmp_path, night("then", *well), night("now", *sick, fault=SLOW_LINK))
    assert len(found["evidence"]) == 4
    assert found["evidence"][-1] == "and 5 more ports"
