"""What is read of network ports, from trees of files."""

import shutil
from pathlib import Path

import pytest
from builders.network_tree import count, infiniband, pci_device, slingshot, write

from gpuscale.base.host import cpu_numa_nodes, gpu_numa_node
from gpuscale.measure.evidence.network import NetworkMeter, read_ports
from gpuscale.records.ports import PORT_COUNTERS, PORT_COUNTERS_BY_NAME, Growth, Port
from gpuscale.records.record import from_json, to_json

SNMP = "Ip: Forwarding DefaultTTL\nIp: 1 64\nTcp: InSegs RetransSegs\nTcp: 9 {}"
NETSTAT = "TcpExt: TCPTimeouts TCPAbortFailed\nTcpExt: {} 0"


def only(ports: tuple[Port, ...]) -> Port:
    (port,) = ports
    return from_json(Port, to_json(port))


def test_an_infiniband_port_is_read_as_the_kernel_documents_it(tmp_path: Path) -> None:
    infiniband(tmp_path)
    assert only(read_ports(tmp_path)) == Port(
        name="mlx5_0 port 1",
        kind="infiniband",
        model="15b3:1021",
        pci_address="0000:c1:00.0",
        numa_node=1,
        state="active",
        rate_gbit_s=400,
        width=4,
        pcie_gt_s=32,
        pcie_width=16,
    )


def test_the_counters_of_a_port_are_told_by_their_growth(tmp_path: Path) -> None:
    folder = infiniband(tmp_path, "mlx5_1", link_layer="Ethernet", symbol_error=7, np_cnp_sent=1)
    meter = NetworkMeter(root=tmp_path)
    count(tmp_path, "infiniband", folder, symbol_error=1211, np_cnp_sent=1, out_of_sequence=3)
    write(tmp_path, (f"{folder}/rate", "200 Gb/sec (4X HDR)"))
    port = only(meter.read())
    assert (port.kind, port.rate_gbit_s) == ("roce", 200)
    assert port.growth == {"symbol_error": 1204, "out_of_sequence": 3}
    assert (port.growth_of("np_cnp_sent"), port.at_least, port.absent) == (0, (), {})


def test_a_rate_that_recovers_during_a_run_is_that_of_the_slow_time(tmp_path: Path) -> None:
    folder = infiniband(tmp_path)
    write(tmp_path, (f"{folder}/rate", "100 Gb/sec (1X NDR)"))
    meter = NetworkMeter(root=tmp_path)
    write(tmp_path, (f"{folder}/rate", "400 Gb/sec (4X NDR)"))
    assert only(meter.read()).rate_gbit_s == 100


def test_a_slingshot_port_is_read_as_its_driver_shows_it(tmp_path: Path) -> None:
    folder = slingshot(tmp_path, hni_pcs_uncorrected_cw=90049)
    meter = NetworkMeter(root=tmp_path)
    times = {"hni_pcs_uncorrected_cw": "90149@1795426400.1", "pct_spt_timeouts": "2@1795426400.2"}
    count(tmp_path, "slingshot", folder, **times)
    port = only(meter.read())
    assert (port.name, port.kind, port.state, port.rate_gbit_s) == ("cxi0", "slingshot", "up", 200)
    assert port.pcie_gt_s == 25
    assert port.growth == {"hni_pcs_uncorrected_cw": 100, "pct_spt_timeouts": 2}


def test_interfaces_count_that_have_hardware_or_carry_traffic(tmp_path: Path) -> None:
    net = "sys/class/net"
    kinds = {"lo": 772, "eth0": 1, "docker0": 1, "veth1": 1, "dummy0": 1, "ib0": 32}
    for name, kind in kinds.items():
        count(tmp_path, "ethernet", f"{net}/{name}")
        write(
            tmp_path,
            (f"{net}/{name}/type", kind),
            (f"{net}/{name}/operstate", "up"),
            (f"{net}/{name}/speed", 25000 if name == "eth0" else -1),
            (f"{net}/{name}/statistics/rx_bytes", 0 if name in ("eth0", "dummy0") else 100),
        )
    pci_device(tmp_path, f"{net}/eth0/device", "0000:03:00.0")
    write(tmp_path, (f"{net}/veth1/master", ""))
    ports = NetworkMeter(root=tmp_path).read()
    assert [(p.name, p.rate_gbit_s) for p in ports] == [("docker0", None), ("eth0", 25)]
    assert [port.name for port in read_ports(tmp_path)] == ["eth0"]


def test_tcp_counts_what_it_sends_again(tmp_path: Path) -> None:
    write(tmp_path, ("proc/net/snmp", SNMP.format(5)), ("proc/net/netstat", NETSTAT.format(1)))
    meter = NetworkMeter(root=tmp_path)
    write(tmp_path, ("proc/net/snmp", SNMP.format(3000)), ("proc/net/netstat", NETSTAT.format(1)))
    port = only(meter.read())
    assert (port.name, port.growth) == ("TCP", {"RetransSegs": 2995})
    assert port.growth_of("TCPTimeouts") == 0


@pytest.mark.parametrize(
    ("counter", "before", "after", "growth"),
    [
        ("symbol_error", 5, 9, Growth(4)),
        ("symbol_error", 5, 65535, Growth(65530, is_floor=True)),
        ("symbol_error", 65535, 65535, "at its maximum"),
        ("symbol_error", 60000, 12, Growth(12, is_floor=True)),
        ("symbol_error", 70000, 70002, Growth(2)),
        ("out_of_sequence", 2**32 - 10, 5, Growth(15)),
        ("out_of_sequence", 1000, 5, Growth(5, is_floor=True)),
        ("out_of_sequence", 2**32 + 5, 2**32 + 9, Growth(4)),
        ("out_of_sequence", 2**32 + 5, 3, Growth(3, is_floor=True)),
        ("hni_pcs_uncorrected_cw", 2**56 - 1, 0, Growth(1)),
        ("rx_errors", 3, 2**64 - 1, "not plausible"),
        ("rx_errors", 3, 0, Growth(0, is_floor=True)),
    ],
)
def test_counters_wrap_or_stop(counter: str, before: int, after: int, growth: Growth | str) -> None:
    assert PORT_COUNTERS_BY_NAME[counter].growth(before, after) == growth


def test_growth_that_is_only_a_lower_bound_and_unknown_growth_are_named(tmp_path: Path) -> None:
    folder = infiniband(tmp_path, symbol_error=60000, link_downed=255)
    meter = NetworkMeter(root=tmp_path)
    count(tmp_path, "infiniband", folder, symbol_error=65535, link_downed=255)
    port = only(meter.read())
    assert (port.growth, port.at_least) == ({"symbol_error": 5535}, ("symbol_error",))
    assert port.absent == {"at its maximum": ("link_downed",)}
    assert port.growth_of("link_downed") is None


def test_a_port_that_vanishes_or_appears_midway_is_named(tmp_path: Path) -> None:
    infiniband(tmp_path, "mlx5_0")
    meter = NetworkMeter(root=tmp_path)
    shutil.rmtree(tmp_path / "sys/class/infiniband/mlx5_0")
    infiniband(tmp_path, "mlx5_1", address="0000:c2:00.0", symbol_error=5)
    gone, new = meter.read()
    assert (gone.name, gone.state, gone.is_usable) == ("mlx5_0 port 1", "vanished", False)
    assert [*gone.absent] == ["the port vanished during the run"]
    assert (new.state, new.growth, new.growth_of("symbol_error")) == ("active", {}, None)


def test_an_adapter_that_takes_a_name_is_not_compared_with_its_first_owner(tmp_path: Path) -> None:
    infiniband(tmp_path, symbol_error=5)
    meter = NetworkMeter(root=tmp_path)
    shutil.rmtree(tmp_path / "sys/class/infiniband/mlx5_0")
    infiniband(tmp_path, address="0000:c2:00.0", symbol_error=2000)
    first, second = meter.read()
    assert first.name == second.name
    assert (first.state, second.pci_address) == ("vanished", "0000:c2:00.0")
    assert first.growth == second.growth == {}


def test_a_counter_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    folder = infiniband(tmp_path, symbol_error="N/A (no PMA)")
    shutil.rmtree(tmp_path / folder / "hw_counters")
    # Reading a folder fails for root too, whom no permission stops.
    (tmp_path / folder / "counters/link_downed").unlink()
    (tmp_path / folder / "counters/link_downed").mkdir()
    port = only(NetworkMeter(root=tmp_path).read())
    in_folder = tuple(sorted(c.name for c in PORT_COUNTERS if c.folder == "hw_counters"))
    assert port.absent == {
        "not a number": ("symbol_error",),
        "Is a directory": ("link_downed",),
        "No such file or directory": in_folder,
    }


@pytest.mark.parametrize("damaged", ["", "-1", "unknown", "\udcff\x00"])
def test_a_port_whose_files_make_no_sense_has_an_unknown_rate(tmp_path: Path, damaged: str) -> None:
    folder = infiniband(tmp_path)
    device = "sys/devices/pci0000:00/0000:c1:00.0"
    for name in ("rate", "../../device/numa_node"):
        (tmp_path / folder / name).write_bytes(damaged.encode(errors="surrogateescape"))
    speed = (f"{device}/current_link_speed", "Unknown")
    write(tmp_path, (f"{device}/current_link_width", 255), speed)
    port = only(read_ports(tmp_path))
    assert (port.rate_gbit_s, port.width, port.numa_node) == (None, None, None)
    assert (port.pcie_width, port.pcie_gt_s) == (None, None)


def test_a_machine_without_sysfs_has_no_ports(tmp_path: Path) -> None:
    assert NetworkMeter(root=tmp_path).read() == read_ports(tmp_path) == ()


def test_numa_nodes_are_those_of_the_cpus_and_of_the_gpus_address(tmp_path: Path) -> None:
    nodes = "sys/devices/system/node"
    lists = enumerate(("0-3", "4-7", "8-9,11"))
    write(tmp_path, *((f"{nodes}/node{number}/cpulist", cpus) for number, cpus in lists))
    assert cpu_numa_nodes({0, 3, 8}, tmp_path) == (0, 2)
    assert cpu_numa_nodes({99}, tmp_path) == ()
    for address, number in (("0000:c1:00.0", 3), ("0001:c1:00.0", -1)):
        write(tmp_path, (f"sys/bus/pci/devices/{address}/numa_node", number))
    assert gpu_numa_node("0000:c1:00.0", tmp_path) == 3
    assert gpu_numa_node("00000000:C1:00.0", tmp_path) == 3
    for unknown in ("0001:c1:00.0", "0002:c1:00.0", "nonsense"):
        assert gpu_numa_node(unknown, tmp_path) is None
