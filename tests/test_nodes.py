"""A sick node is told from a sick link, by simulation with known truth and on real hosts."""

import json
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path

import pytest
from builders import CNN, results, results_text, run
from changing import replace
from commands import free_port
from slurm_cluster import slurm_cluster
from warm_sessions import WarmProcess

from gpuscale.judge.diagnose.slow_links import find_slow, retest_rounds, round_robin
from gpuscale.measure.launch.collect import probes_left
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.records import NodeProbe, Probe
from gpuscale.records.probes import MATRIX, SEND, NodeProbeRequest

SPREAD = 0.05
TRIALS = 300


def products(host: str, *compute_s: float) -> tuple[Probe, ...]:
    return tuple(
        Probe(name=MATRIX, host=host, device=f"GPU {number}", rates=(1 / time_s,))
        for number, time_s in enumerate(compute_s)
    )


def linked(
    nodes: int,
    send_s: Callable[[int, int], float | None],
    compute_s: Callable[[int], Sequence[float]] = lambda place: (),
    *,
    domain: str = "",
) -> list[NodeProbe]:
    """Return the probes of nodes with these times of messages; None is a pair without any."""
    found = []
    for place in range(nodes):
        host = f"n{place}{domain}"
        sends = [
            Probe(name=SEND, host=host, peer=f"n{peer}{domain}", rates=(1 / known_s,))
            for peer in range(nodes)
            if peer != place and (known_s := send_s(place, peer)) is not None
        ]
        found.append(NodeProbe(host=host, probes=(*products(host, *compute_s(place)), *sends)))
    return found


def probes(
    chance: random.Random,
    nodes: int,
    *,
    devices: int = 4,
    slow_sender: int | None = None,
    slow_link: tuple[int, int] | None = None,
    slow_device: tuple[int, int] | None = None,
) -> list[NodeProbe]:
    """Return the probes of a job's nodes, whose times vary; without devices all compute alike."""

    def time_s(*, slow: bool) -> float:
        return 0.01 * chance.lognormvariate(0, SPREAD) * (2.0 if slow else 1.0)

    def send_s(place: int, peer: int) -> float:
        return time_s(slow=slow_sender == place or slow_link in ((place, peer), (peer, place)))

    def compute_s(place: int) -> Sequence[float]:
        return [time_s(slow=slow_device == (place, d)) for d in range(devices)] or (0.01,)

    return linked(nodes, send_s, compute_s)


@pytest.mark.parametrize("nodes", [2, 3, 4, 8, 32])
def test_healthy_nodes_are_seldom_called_slow(nodes: int) -> None:
    chance = random.Random(nodes)
    alarms = sum(bool(find_slow(probes(chance, nodes, devices=1))) for _ in range(TRIALS))
    # Two single devices whose times vary by 5% differ by more than 20% in one case in a hundred.
    assert alarms <= TRIALS * 0.03


@pytest.mark.parametrize("nodes", [3, 4, 8, 32])
def test_a_bad_adapter_is_named_by_its_node_and_a_bad_link_by_its_two_ends(nodes: int) -> None:
    chance = random.Random(nodes)
    for _ in range(TRIALS // 3):
        one, other = sorted(chance.sample(range(nodes), 2))
        (of_node,) = find_slow(probes(chance, nodes, slow_sender=one, devices=0))
        assert (of_node.kind, of_node.hosts) == ("node links", (f"n{one}",))
        assert 1.5 < of_node.slower < 2.8
        assert "check its network adapter" in of_node.text
        (of_link,) = find_slow(probes(chance, nodes, slow_link=(one, other), devices=0))
        assert (of_link.kind, of_link.hosts) == ("link", (f"n{one}", f"n{other}"))


@pytest.mark.parametrize(("nodes", "sick"), [(8, (2, 5)), (7, (1, 2, 5))])
def test_several_bad_adapters_are_named_all(nodes: int, sick: tuple[int, ...]) -> None:
    chance = random.Random(1)
    seen = probes(chance, nodes, devices=0)
    for place in sick:
        seen[place] = probes(chance, nodes, slow_sender=place, devices=0)[place]
    assert {f.hosts for f in find_slow(seen)} == {(f"n{place}",) for place in sick}


@pytest.mark.parametrize(
    ("nodes", "ends", "blamed"),
    [(5, (1, 2), {("n0", "n1"), ("n0", "n2")}), (6, (1, 2, 3), {("n0",)})],
)
def test_a_node_is_blamed_for_slow_links_where_more_than_half_of_its_own_are(
    nodes: int, ends: tuple[int, ...], blamed: set[tuple[str, ...]]
) -> None:
    chance = random.Random(4)
    seen = probes(chance, nodes, devices=0)
    for place in ends:
        seen[place] = probes(chance, nodes, slow_link=(0, place), devices=0)[place]
    assert {f.hosts for f in find_slow(seen)} == blamed


def test_a_node_is_set_beside_the_others_and_not_beside_itself() -> None:
    (found,) = find_slow(linked(3, lambda *ends: 0.01, lambda place: ((1.0, 1.3, 1.5)[place],)))
    assert found.hosts == ("n2",)
    assert found.slower == pytest.approx(1.5 / 1.15)


@pytest.mark.parametrize("nodes", [2, 3, 8])
def test_a_slow_gpu_is_named_with_its_node(nodes: int) -> None:
    found = find_slow(probes(random.Random(2), nodes, slow_device=(1, 3)))
    assert ("n1",) in [f.hosts for f in found if "to compute" in f.text]
    slowest = max(found, key=lambda f: f.slower)
    assert (slowest.kind, slowest.hosts) == ("computation", ("n1",))
    assert "on GPU 3" in slowest.text
    alone = find_slow(probes(random.Random(2), nodes, devices=1, slow_device=(1, 0)))
    assert [f.kind for f in alone] == ["computation"]
    assert "on GPU" not in alone[0].text
    two = linked(2, lambda *ends: None, lambda place: (1.0, 1.0 + place / 2))
    (found_of_two,) = find_slow(two)
    assert "on GPU 1" in found_of_two.text


def test_of_two_nodes_the_slow_way_is_named_and_that_its_end_cannot_be_told() -> None:
    (found,) = find_slow(probes(random.Random(3), 2, slow_sender=1, devices=0))
    assert (found.kind, found.hosts) == ("direction", ("n1", "n0"))
    assert "two nodes cannot show which" in found.text
    assert find_slow(probes(random.Random(3), 2, slow_link=(0, 1), devices=0)) == ()


@pytest.mark.parametrize("nodes", [*range(1, 9), 11])
def test_all_pairs_of_a_few_nodes_meet_once_and_none_is_in_two_pairs_at_a_time(nodes: int) -> None:
    rounds = round_robin(nodes)
    for pairs in rounds:
        assert len({*chain(*pairs)}) == 2 * len(pairs) == nodes - nodes % 2
    met = sorted(chain(*rounds))
    if nodes <= 8:
        assert met == [*combinations(range(nodes), 2)]
    else:
        assert (len(rounds), len(met)) == (4, len({*met}))


LEAVES = {"n0": "leaf1", "n1": "leaf1", "n2": "leaf2", "n3": "leaf2", "n4": "leaf2"}


@pytest.mark.parametrize("domain", ["", ".example.org"])
@pytest.mark.parametrize(
    ("leaves", "switch"),
    [
        (LEAVES, "leaf switch leaf1"),
        # It is not the switch of the two alone, it is unknown, or there are two.
        ({**LEAVES, "n4": "leaf1"}, "switch"),
        ({}, "switch"),
        ({**LEAVES, "n1": "leaf3"}, "switch"),
    ],
)
def test_nodes_behind_a_slow_switch_are_named_with_the_switch_that_the_scheduler_knows(
    leaves: Mapping[str, str], switch: str, domain: str
) -> None:
    def time_s(one: int, other: int) -> float:
        return (0.01, 0.08, 0.025)[sum(place < 2 for place in (one, other))]

    (found,) = find_slow(linked(5, time_s, domain=domain), leaves)
    assert (found.kind, found.hosts) == ("switch", (f"n0{domain}", f"n1{domain}"))
    assert "their links take 8× as long" in found.text
    assert f"see the {switch} or uplink they share" in found.text


def test_slow_nodes_that_are_hardly_faster_among_themselves_have_a_fault_each() -> None:
    seen = linked(5, lambda *ends: (0.01, 0.08, 0.032)[sum(place < 2 for place in ends)])
    found = find_slow(seen, LEAVES)
    assert [each.hosts for each in found] == [("n0",), ("n1",)]
    assert {each.kind for each in found} == {"node links"}
    assert all("its links take 8× as long" in each.text for each in found)


def test_a_link_is_compared_with_the_lower_quartile_of_all() -> None:
    pairs = [*combinations(range(5), 2)]
    times_s = {pair: 1 + place / 100 for place, pair in enumerate(pairs)} | {(3, 4): 3.0}
    (found,) = find_slow(linked(5, lambda *ends: times_s[min(ends), max(ends)]))
    assert (found.kind, found.hosts) == ("link", ("n3", "n4"))
    assert found.slower == pytest.approx(3.0 / 1.02)


@pytest.mark.parametrize(("more", "count"), [(0.0, 0), (0.01, 1)])
def test_what_takes_as_much_longer_as_is_allowed_is_not_slow(more: float, count: int) -> None:
    seen = linked(3, lambda *ends: 1.5 + more if {*ends} == {0, 1} else 1.0)
    assert len(find_slow(seen)) == len(retest_rounds(seen)[-1:]) == count
    seen = linked(3, lambda *ends: None, lambda place: (1.2 + more if place == 2 else 1.0,))
    assert len(find_slow(seen)) == count


def test_a_node_of_which_a_single_link_is_known_is_not_blamed_for_it() -> None:
    times_s = {(0, 1): 0.02, (1, 2): 0.01, (2, 3): 0.01, (1, 3): 0.01}
    seen = linked(4, lambda one, other: times_s.get((min(one, other), max(one, other))))
    (found,) = find_slow(seen)
    assert (found.kind, found.hosts) == ("link", ("n0", "n1"))


def test_a_suspect_is_tested_again_with_three_healthy_nodes_far_from_each_other() -> None:
    seen = linked(13, lambda *ends: 0.02 if 0 in ends else 0.01)
    assert retest_rounds(seen) == (((0, 1),), ((0, 5),), ((0, 9),))


# The rank of a node that is slow to write down what it saw.
LATE = """
import sys, time
from gpuscale.measure.run_directory import RecordFile
from gpuscale.measure.worker import probes

write = RecordFile.write

def write_late(file, record):
    time.sleep(float(sys.argv[2]))
    write(file, record)

RecordFile.write = write_late
probes.probe(sys.argv[1])
"""


def test_no_rank_of_a_look_at_nodes_leaves_before_the_others_are_done(tmp_path: Path) -> None:
    directory = RunDirectory(path=tmp_path)
    request = NodeProbeRequest(
        device="cpu",
        names=(SEND,),
        ranks_per_node=1,
        seconds=0.1,
        message_bytes=(4096,),
        rounds=round_robin(2),
        timeout_s=200,
    )
    directory.probe_request.write(request)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    script = tmp_path / "late.py"
    script.write_text(LATE)
    ranks = []
    for rank, late_s in enumerate((0.0, 2.0)):
        own = {**os.environ, **place, "RANK": str(rank), "WORLD_SIZE": "2"}
        words = (str(script), str(tmp_path), str(late_s))
        ranks.append(WarmProcess(tmp_path, words, own, tmp_path / f"log-{rank}"))
    # The first rank keeps the store of the group.
    assert ranks[0].wait(240) == 0
    assert directory.probe(1).path.exists()
    assert ranks[1].wait(240) == 0
    hosts = probes_left(directory, ("a", "b"), 1, timed_out=False)
    assert [[probe.name for probe in host.probes] for host in hosts] == [[SEND], [SEND]]


@pytest.mark.scheduler
def test_a_leaf_switch_with_a_slow_uplink_is_named_as_slurm_names_it() -> None:
    names = [f"n{number}" for number in range(1, 6)]
    leaves = ("SwitchName=leaf1 Nodes=n[1-2]", "SwitchName=leaf2 Nodes=n[3-5]")
    spine = "SwitchName=spine Switches=leaf[1-2]"
    # Small messages on links that are slow enough for a busy machine to keep up with.
    buckets = run(2, 0.1, configuration=replace(CNN, strategy_options="bucket_cap_mb=1"))
    with slurm_cluster(dict.fromkeys(names, "CPUs=1"), topology=(*leaves, spine)) as cluster:
        near, far = cluster.nodes[:2], cluster.nodes[2:]
        for node in cluster.nodes:
            node.limit_uplink("20mbit", beyond=far if node in near else near, adapter="50mbit")
        (cluster.directory / "small.jsonl").write_text(results_text(results(buckets)))
        job = ("salloc", "--quiet", "--nodes=5", "--exclusive", sys.executable, "-m", "gpuscale")
        probe = ("probe", "small.jsonl", "--only", SEND, "--launcher", "slurm", "--device", "cpu")
        answer = cluster.run(*job, *probe)
    assert answer.returncode == 1, answer.stdout
    assert "\n  n1, n2: their links take" in answer.stdout, answer.stdout
    assert "see the leaf switch leaf1" in answer.stdout


@pytest.mark.scheduler
def test_the_doctor_finds_the_node_whose_adapter_is_slow() -> None:
    job = ("salloc", "--quiet", "--nodes=3", "--exclusive", sys.executable, "-m", "gpuscale")
    doctor = ("doctor", "--nodes", "--device", "cpu", "--format", "json")
    with slurm_cluster(dict.fromkeys(("n1", "n2", "n3"), "CPUs=1")) as cluster:
        cluster.nodes[1].limit_link("250mbit")
        answer = cluster.run(*job, *doctor)
    assert answer.returncode == 1, answer.stdout
    document = json.loads(answer.stdout)
    # Hosts that share cores are seldom equally fast.
    (found,) = (each for each in document["findings"] if each["kind"] != "computation")
    assert (found["kind"], found["hosts"]) == ("node links", ["n2"])
    nodes = document["nodes"]
    assert [node["host"] for node in nodes] == ["n1", "n2", "n3"]
    # The message cannot be faster than its bytes through that link.
    sends = [probe for probe in nodes[1]["probes"] if probe["name"] == SEND]
    assert sends
    assert all(rate < 250e6 / 8 / 0.8 for send in sends for rate in send["rates"])
