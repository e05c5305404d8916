"""What the doctor says of ports and of the CPUs that ranks may run on, on each node of a job."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from builders.network_tree import infiniband, write
from changing import replace
from command_line import ran
from hosts import Cluster, skip_without_hosts
from measuring import emulated_gpus
from slurm_cluster import TWO_NODES, slurm_cluster

from gpuscale.judge.diagnose.symptoms import find_port_faults
from gpuscale.records import NodeProbe
from gpuscale.records.probes import Port

ADAPTER = Port(name="mlx5_0 port 1", kind="infiniband", model="15b3:1021", state="active")
PORT = replace(ADAPTER, rate_gbit_s=400, width=4, pcie_gt_s=32, pcie_width=16)
SLOW = replace(PORT, rate_gbit_s=200)
DOWN = replace(PORT, state="down", rate_gbit_s=10)
ETHERNET = Port(name="eth1", kind="ethernet", model="8086:1572", state="up", rate_gbit_s=10)
UNPLUGGED = replace(ETHERNET, state="down", rate_gbit_s=None)


def node(
    host: str, *ports: Port, gpus: Sequence[int | None] = (), cpus: tuple[int, ...] = ()
) -> NodeProbe:
    return NodeProbe(host=host, ports=ports, gpu_numa_nodes=tuple(gpus), cpu_numa_nodes=cpus)


def row_of(*ports: Port) -> list[Port]:
    """These ports, each with another name, as on one node."""
    return [replace(port, name=f"mlx5_{n} port 1") for n, port in enumerate(ports)]


def texts(*nodes: NodeProbe) -> list[str]:
    return [finding.text for finding in find_port_faults(nodes)]


HERE = sorted(os.sched_getaffinity(0))
PLACES = ("class", "bus/pci/devices", "devices/system/node")
"""Below /sys: no machine of the tests has InfiniBand or two sockets."""
CHECK = "check cable, switch port and adapter"


def test_a_port_is_compared_with_its_namesakes_on_other_nodes() -> None:
    alike = [node(f"n{number}", PORT) for number in range(1, 4)]
    assert texts(*alike) == []
    (four,) = texts(*alike, node("n4", SLOW))
    assert four == f"n4 mlx5_0 port 1 runs at 200 Gb/s, others like it at 400: {CHECK}"
    (two,) = texts(node("n1", PORT), node("n2", replace(PORT, width=1)))
    assert two.startswith("n2 mlx5_0 port 1 has 1 lanes, others like it 4")
    # The port of each node that leads to the storage.
    storage = replace(SLOW, name="mlx5_8 port 1")
    assert texts(*(node(f"n{number}", PORT, storage) for number in range(3))) == []


def test_a_port_of_a_single_node_is_compared_with_its_likes_there() -> None:
    assert texts(node("n1", *row_of(PORT, PORT, PORT))) == []
    (slow,) = texts(node("n1", *row_of(PORT, SLOW, PORT)))
    assert slow.startswith("n1 mlx5_1 port 1 runs at 200 Gb/s")
    assert len(texts(node("n1", *row_of(PORT, SLOW, SLOW)))) == 2
    (narrow,) = texts(node("n1", *row_of(PORT, replace(PORT, pcie_width=8))))
    assert narrow.startswith("n1 mlx5_1 port 1 is on PCIe x8, others like it on x16")
    other_model = replace(SLOW, name="mlx4_0 port 1", model="15b3:1003")
    assert texts(node("n1", PORT, other_model)) == []


def test_a_port_that_is_down_is_named_unless_it_is_so_on_most_nodes() -> None:
    down = f"n2 mlx5_0 port 1 is down: {CHECK}"
    assert texts(node("n2", DOWN)) == [down]
    (found,) = find_port_faults([node("n2", DOWN)])
    assert (found.kind, found.hosts, found.slower) == ("port", ("n2",), 1.0)
    assert texts(node("n1", PORT), node("n2", DOWN), node("n3", PORT)) == [down]
    assert texts(node("n1", DOWN), node("n2", DOWN), node("n3", PORT)) == []


def test_a_socket_of_ethernet_without_a_cable_is_named_if_other_nodes_have_one() -> None:
    assert texts(node("n1", ETHERNET, replace(UNPLUGGED, name="eth2"))) == []
    found = texts(node("n1", ETHERNET), node("n2", UNPLUGGED), node("n3", ETHERNET))
    assert found == [f"n2 eth1 is down: {CHECK}"]


def test_gpus_that_are_far_from_the_cpus_of_their_ranks_are_named() -> None:
    assert texts(node("n1", gpus=(0, 0, 1, 1), cpus=(0, 1))) == []
    assert texts(node("n1", gpus=(None, None), cpus=(0,)), node("n2", gpus=(3,))) == []
    (found,) = find_port_faults([node("n1", gpus=(0, 0, 1, 1), cpus=(0,))])
    assert (found.kind, found.hosts, found.slower) == ("binding", ("n1",), 1.0)
    assert found.text.startswith("n1: ranks run on CPUs of NUMA node 0, far from GPU 2, 3")


@pytest.mark.scheduler
def test_the_doctor_of_one_machine_shows_ports_and_faults(tmp_path: Path, driver: Path) -> None:
    skip_without_hosts((), "")
    infiniband(tmp_path, "mlx5_0")
    folder = infiniband(tmp_path, "mlx5_1", address="0000:c2:00.0")
    write(tmp_path, (f"{folder}/rate", "200 Gb/sec (4X HDR)"))
    # Of the GPUs of tests/nvml, at this address and the next, one is far from all CPUs.
    for number, bus in enumerate(("00", "11")):
        write(tmp_path, (f"sys/bus/pci/devices/0000:{bus}:00.0/numa_node", number))
    write(tmp_path, ("sys/devices/system/node/node0/cpulist", "0-9999"))
    see = " && ".join(f"mount --bind {tmp_path}/sys/{place} /sys/{place}" for place in PLACES)
    doctor = f"{sys.executable} -m gpuscale doctor"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver)}
    answer = ran("unshare", "--mount", "sh", "-c", f"{see} && exec {doctor}", env=environment)
    assert answer.returncode == 1, answer.stderr
    assert "port      mlx5_0 port 1 (infiniband): active, 400 Gb/s\n" in answer.stdout
    assert "mlx5_1 port 1 runs at 200 Gb/s, others like it at 400" in answer.stdout
    assert "ranks run on CPUs of NUMA node 0, far from GPU 1: see how" in answer.stdout


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with slurm_cluster(TWO_NODES, gpus=1) as cluster:
        yield cluster


@pytest.mark.scheduler
@pytest.mark.skipif(len(HERE) < 2, reason="needs two CPUs")
def test_the_doctor_finds_a_wrong_socket_and_a_slow_port(cluster: Cluster, tmp_path: Path) -> None:
    for host, rate in zip(cluster.nodes, (400, 200), strict=True):
        root = tmp_path / host.name
        write(
            root,
            (f"{infiniband(root)}/rate", f"{rate} Gb/sec (4X NDR)"),
            # The GPU of the emulation, as gloo, which reads the class of every device, sees it too.
            ("sys/bus/pci/devices/0000:c1:00.0/class", "0x030200"),
            ("sys/bus/pci/devices/0000:c1:00.0/numa_node", 0),
            ("sys/devices/system/node/node0/cpulist", HERE[0]),
            ("sys/devices/system/node/node1/cpulist", HERE[-1]),
        )
        for place in PLACES:
            host.mount_over(Path("/sys", place), root / "sys" / place)
    cluster.nodes[1].bind({HERE[-1]})
    # What a GPU multiplies in a moment takes a CPU minutes.
    emulation = {**emulated_gpus(1), "EMULATED_LARGEST_SIDE": "128"}
    answer = cluster.run(
        *("salloc", "--quiet", "--nodes=2", "--exclusive", "--gres=gpu:1"),
        *(sys.executable, "-m", "gpuscale", "doctor", "--nodes", "--device", "cuda"),
        *("--format", "json"),
        environment=emulation,
    )
    assert answer.returncode == 1, answer.stdout
    document = json.loads(answer.stdout)
    # Hosts that share two cores are seldom equally fast.
    found = [each for each in document["findings"] if each["kind"] in ("port", "binding")]
    assert [each["hosts"] for each in found] == [["n2"], ["n2"]]
    port, binding = (each["text"] for each in found)
    assert port == f"n2 mlx5_0 port 1 runs at 200 Gb/s, others like it at 400: {CHECK}"
    assert binding.startswith("n2: ranks run on CPUs of NUMA node 1, far from GPU 0")
    assert [node["ports"][0]["rate_gbit_s"] for node in document["nodes"]] == [400, 200]
    assert [node["cpu_numa_nodes"] for node in document["nodes"]] == [[0, 1], [1]]
