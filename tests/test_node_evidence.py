"""What is read of a node, its network ports and settings, from trees of files."""

import shutil
from pathlib import Path

import pytest
from builders import baseline, environment, measured
from builders.network_tree import count, infiniband, pci_device, slingshot, write
from changing import replace
from statements import facts_of
from test_host_load import SLOWER, THEN

from gpuscale.base.host import cpu_numa_nodes, gpu_numa_node
from gpuscale.judge.compare import compare
from gpuscale.judge.compare.notes import with_environment_changes
from gpuscale.judge.diagnose.causes import diagnose
from gpuscale.judge.sides import sides_of
from gpuscale.measure.evidence.network import NetworkMeter, read_ports
from gpuscale.measure.evidence.node import read_settings
from gpuscale.records import NodeEvidence, Run
from gpuscale.records.environment_diff import environment_changes, environment_text
from gpuscale.records.gpu_and_port_counters import PORT_COUNTERS, PORT_COUNTERS_BY_NAME
from gpuscale.records.probes import Port
from gpuscale.records.record import from_json, to_json
from gpuscale.reports.cause_evidence import evidence
from gpuscale.reports.cause_words import whole_line

SNMP = "Ip: Forwarding DefaultTTL\nIp: 1 64\nTcp: InSegs RetransSegs\nTcp: 9 {}"
NETSTAT = "TcpExt: TCPTimeouts TCPAbortFailed\nTcpExt: {} 0"


def only(ports: tuple[Port, ...]) -> Port:
    (port,) = ports
    return from_json(Port, to_json(port))


def test_an_infiniband_port_is_read_as_the_kernel_documents_it(tmp_path: Path) -> None:
    infiniband(tmp_path)
    port = Port(name="mlx5_0 port 1", kind="infiniband", model="15b3:1021", state="active")
    port = replace(port, pci_address="0000:c1:00.0", pcie_gt_s=32, pcie_width=16, numa_node=1)
    assert only(read_ports(tmp_path)) == replace(port, rate_gbit_s=400, width=4)


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
        ("symbol_error", 5, 9, (4, False)),
        ("symbol_error", 5, 65535, (65530, True)),
        ("symbol_error", 65535, 65535, "at its maximum"),
        ("symbol_error", 60000, 12, (12, True)),
        ("symbol_error", 70000, 70002, (2, False)),
        ("out_of_sequence", 2**32 - 10, 5, (15, False)),
        ("out_of_sequence", 1000, 5, (5, True)),
        ("out_of_sequence", 2**32 + 5, 2**32 + 9, (4, False)),
        ("out_of_sequence", 2**32 + 5, 3, (3, True)),
        ("hni_pcs_uncorrected_cw", 2**56 - 1, 0, (1, False)),
        ("rx_errors", 3, 2**64 - 1, "not plausible"),
        ("rx_errors", 3, 0, (0, True)),
    ],
)
def test_counters_wrap_or_stop(
    counter: str, before: int, after: int, growth: tuple[int, bool] | str
) -> None:
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


CPUS = "sys/devices/system/cpu"
TREE = {
    f"{CPUS}/cpufreq/policy0/scaling_governor": "performance",
    f"{CPUS}/cpufreq/policy1/scaling_governor": "performance",
    f"{CPUS}/cpufreq/boost": "1",
    f"{CPUS}/smt/control": "forceoff",
    "proc/cpuinfo": "processor\t: 0\nvendor_id\t: X\nmicrocode\t: 0xd000389\nflags\t: a",
    "proc/cmdline": "BOOT_IMAGE=/v root=/dev/sda1 token=s3cret iommu=pt amd_iommu=on pci=nommconf "
    "hugepagesz=1G nohz-full=2-63 quiet -- isolcpus=7",
    "proc/sys/kernel/numa_balancing": "1",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "sys/kernel/iommu_groups/0/type": "identity",
    "sys/kernel/iommu_groups/1/type": "DMA-FQ",
}
IN_TREE = {
    "governor": "performance",
    "frequency_boost": "1",
    "SMT": "forceoff",
    "microcode": "0xd000389",
    "kernel_options": "iommu=pt amd_iommu=on pci=nommconf hugepagesz=1G nohz-full=2-63",
    "transparent_hugepages": "madvise",
    "NUMA_balancing": "1",
    "IOMMU": "DMA-FQ, identity",
    "container_image": "none",
}


@pytest.fixture(autouse=True)
def outside_of_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        monkeypatch.delenv(name, raising=False)


def test_each_setting_is_read_and_no_option_that_may_be_a_secret(tmp_path: Path) -> None:
    write(tmp_path, *TREE.items())
    assert read_settings(tmp_path) == (IN_TREE, {})


def test_cpus_that_differ_are_counted(tmp_path: Path) -> None:
    write(tmp_path, *TREE.items(), (f"{CPUS}/cpufreq/policy2/scaling_governor", "powersave"))
    found, _ = read_settings(tmp_path)
    assert found["governor"] == "performance on 2, powersave on 1"


def test_a_machine_that_lacks_a_setting_has_nothing_to_tell(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/iommu_groups").mkdir(parents=True)
    # Another processor's: without a line for microcode.
    write(tmp_path, ("proc/cmdline", "ro quiet"), ("proc/cpuinfo", "cpu\t: POWER9"))
    settings = {"IOMMU": "off", "kernel_options": "none", "container_image": "none"}
    assert read_settings(tmp_path) == (settings, {})


def test_what_is_damaged_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    root = tmp_path
    write(root, *TREE.items())
    (root / "proc/cpuinfo").write_bytes(b"\xff\x00\xfe")
    (root / "proc/sys/kernel/numa_balancing").write_text("")
    (root / "sys/kernel/mm/transparent_hugepage/enabled").write_text("\x1b[31mwhat")
    (root / "proc/cmdline").unlink()
    for folder in (f"{CPUS}/cpufreq/policy1/scaling_governor", f"{CPUS}/smt/control"):
        (root / folder).unlink()
        (root / folder).mkdir()
    found, absent = read_settings(root)
    assert found.keys() == {"frequency_boost", "IOMMU", "container_image"}
    cpus = {"governor", "SMT", "NUMA_balancing"}
    assert absent.keys() == {"kernel_options", "transparent_hugepages"} | cpus
    assert absent["kernel_options"] == "No such file or directory"
    assert absent["SMT"] == "Is a directory"
    node = from_json(NodeEvidence, to_json(NodeEvidence(host="n1", settings=found, absent=absent)))
    assert node.absent["transparent_hugepages"].startswith("unexpected content of enabled")


ENROOT = "22 1 0:40 /{} / rw,nosuid - xfs /dev/sda rw\n23 22 0:5 / /proc rw - proc proc rw\n"


@pytest.mark.parametrize("variable", ["APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"])
def test_an_image_of_apptainer_is_named(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "/images/torch.sif")
    assert read_settings(tmp_path)[0]["container_image"] == "/images/torch.sif"


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("home/u/.local/share/enroot/torch", "torch"),
        ("run/enroot/user-1/pyxis_4711.0", "pyxis"),
        ("run/enroot/user-1/pyxis_4711_torch", "pyxis_torch"),
        ("run/enroot/user-1/pyxis_torch", "pyxis_torch"),
    ],
)
def test_enroots_container_is_named_without_its_job(folder: str, name: str, tmp_path: Path) -> None:
    write(tmp_path, (".lock", ""), ("proc/self/mountinfo", ENROOT.format(folder)))
    found, _ = read_settings(tmp_path)
    assert found["container_image"] == name


def nodes(*governors: str, **others: str) -> list[NodeEvidence]:
    """Return a node for each governor: n1, n2, and so on."""
    settings = [{"governor": governor, **others} for governor in governors]
    return [NodeEvidence(host=f"n{n}", settings=each) for n, each in enumerate(settings, start=1)]


def test_a_setting_is_named_in_words_and_one_that_is_unknown_is_no_change() -> None:
    here = [environment()]

    def said(before: list[NodeEvidence], after: list[NodeEvidence]) -> list[str]:
        return [*map(environment_text, environment_changes(here, here, before, after))]

    quick = nodes(*["performance"] * 16, kernel_options="none")
    assert said(quick, quick) == said([], quick) == said(quick, nodes("performance")) == []
    passed_through = nodes(*["performance"] * 16, kernel_options="iommu=pt")
    assert said(quick, passed_through) == ["kernel options none → iommu=pt"]
    assert said(quick, [NodeEvidence(host="n1")]) == []


def on(nodes: list[NodeEvidence], runs: tuple[Run, ...]) -> tuple[Run, ...]:
    return tuple(replace(run, nodes=tuple(nodes)) for run in runs)


def test_a_comparison_notes_a_new_setting_and_a_loss_lists_it_among_changes() -> None:
    recorded, now = baseline(THEN), measured(SLOWER)
    runs = on(nodes("performance", "performance"), recorded.runs)
    places = {run.allocation or recorded.name: now.environment for run in runs}
    recorded = replace(recorded, runs=runs, environments=places)
    after = [replace(now, runs=on(nodes("performance", "powersave"), now.runs))]
    sides = sides_of(recorded, after)
    found = diagnose(sides, with_environment_changes(compare(recorded, after), sides))
    text = "governor performance → powersave on n2"
    (change,) = facts_of(found.notes, "environment_changed")["changes"]
    assert environment_text(change) == text
    causes = found.entries[-1].causes
    (cause,) = (cause for cause in causes if cause.code == "environment_changed")
    assert text in (whole_line(cause, "cuda") + "".join(evidence(cause)))
    # It is listed, and never said to be the reason for a share of the loss.
    assert cause.share is None
