"""What NCCL and RCCL say in their logs: lines as the sources of several versions print them.

Hosts, addresses and numbers are made up. Public reports with such lines: NVIDIA/nccl issues 392
(2.5), 952 (2.14) and 1189 (2.19), NVIDIA/nccl-tests issues 228 (2.18) and 311 (2.23, SHARP),
aws/aws-ofi-nccl issue 715 (2.21), ROCm/rccl issues 419 (2.11) and 1026 (2.16).
"""

from pathlib import Path

import pytest
from statements import known

from gpuscale.measure.evidence.network import connections_in, log_variables, read_logs

OTHERS = (
    "Bootstrap : Using ib0:10.0.0.1<0>",
    "Setting affinity for GPU 0 to ffff",
    "threadThresholds 8/8/64 | 128/8/64 | 512 | 512",
    "=== System : maxBw 48.0 totalBw 480.0 ===",
    "Ring 00 : 15 -> 0 -> 1",
    "Channel 00/24 : 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15",
    "Connected all rings",
    "NVLS Trees : 1/2/-1->0->-1 1/2/-1->0->-1",
    "GPU Direct RDMA Enabled for GPU 0 / HCA 0 (distance 4 <= 5), read 1",
    "NCCL_SOCKET_IFNAME set by environment to ib0",
    "A line that some later version writes",
)


def log(*messages: str, process: int = 100, thread: int = 101) -> str:
    """Return a log as a process writes it (src/debug.cc)."""
    return "".join(f"n1:{process}:{thread} [0] NCCL INFO {text}\n" for text in messages)


# src/init.cc, src/graph/search.cc and src/transport/*.cc of the versions named.
V2_7 = (
    "NCCL version 2.7.8+cuda11.0",
    "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB ib0:10.0.0.1<0>",
    "Using network IB",
    "Pattern 4, crossNic 0, nChannels 2, speed 21.000000/12.000000, type NVL/PIX, sameChannels 1",
    "Pattern 3, crossNic 0, nChannels 2, speed 21.000000/12.000000, type NVL/PIX, sameChannels 1",
    "Channel 00 : 15[b1000] -> 0[7000] [receive] via NET/IB/0/GDRDMA",
    "Channel 00 : 0[7000] -> 1[b000] via P2P/IPC/read",
    "Channel 00 : 0[7000] -> 7[b1000] via direct shared memory",
    "Channel 01 : 0[7000] -> 8[7000] [send] via NET/IB/1",
    "4 coll channels, 4 p2p channels, 2 p2p channels per peer",
    "comm 0x7f0000001000 rank 0 nranks 16 cudaDev 0 busId 7000 - Init COMPLETE",
)
V2_18_NVLS = (
    "comm 0x5500 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x45701 - Init START",
    "NVLS multicast support is available on dev 0",
    "Pattern 4, crossNic 0, nChannels 8, bw 48.000000/48.000000, type NVL/PIX, sameChannels 0",
    "Pattern 1, crossNic 0, nChannels 8, bw 48.500000/24.000000, type NVL/PXB, sameChannels 0",
    "Pattern 5, crossNic 0, nChannels 8, bw 20.000000/24.000000, type NVL/PIX, sameChannels 0",
    "Channel 00/0 : 0[0] -> 7[7] via P2P/CUMEM/read",
    "Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0(3)/GDRDMA/Shared",
    "Connected NVLS tree",
    "16 coll channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer",
    "comm 0x5500 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x45701 - Init COMPLETE",
)
V2_23_SHARP = (
    "NCCL version 2.23.4+cuda12.4",
    "P2P plugin v8 IBext_v8",
    "NET/IB : Using [0]mlx5_2:1/IB/SHARP [1]mlx5_0:1/IB/SHARP [RO]; OOB ib0:10.0.0.1<0>",
    "ncclCommInitRank comm 0x5aa rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 7000 commId 0x457 - "
    "Init START",
    "comm 0x5aa rank 0 nRanks 8 nNodes 4 localRanks 2 localRank 0 MNNVL 0",
    "CollNet 00/0 : 0 [receive] via COLLNET/SHARP/1/GDRDMA",
    "3 coll channels, 3 collnet channels, 0 nvls channels, 4 p2p channels, 2 p2p channels per peer",
    "ncclCommInitRank comm 0x5aa rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 7000 commId 0x457 - "
    "Init COMPLETE",
)
V2_28_SOCKET = (
    "NCCL version 2.28.9+cuda13.0",
    "NET/IB : No device found.",
    "NET/Socket : Using [0]eth0:10.0.0.1<0> [1]ib0:fe80::ec0:ff:fe11:22%ib0<0>",
    "Channel 03/0 : 15[7] -> 6[6] [send] via NET/Socket/0",
    "Channel 03 : 15[7] -> 14[6] via SHM/direct/direct",
)
RCCL_2_18 = (
    "RCCL version 2.18.3+hip6.0 HEAD:2f6d59e+",
    "NET/OFI Using aws-ofi-rccl 1.4.0",
    "NET/OFI Selected Provider is cxi (found 4 nics)",
    "Trees [0] 2/-1/-1->3->1 [1] 1/-1/-1->3->2 comm 0xaa09f20 nRanks 16 busId ce000",
    "Channel 03/0 : 3[ce000] -> 6[c9000] [send] via NET/AWS Libfabric/2/GDRDMA comm 0xaa nRanks 16",
    "Channel 02/0 : 1[c6000] -> 0[c1000] via P2P/IPC comm 0x9e4d8d0 nRanks 16",
    "4 coll channels, 0 collnet channels, 0 nvls channels, 4 p2p channels, 4 p2p channels per peer",
    "comm 0xaa rank 3 nranks 16 cudaDev 3 busId ce000 localSize 336 used 5 bytes - Init COMPLETE",
)


SAID = {
    V2_7: {
        "GDRDMA": "partly",
        "adapters": "mlx5_0:1/IB, mlx5_1:1/IB",
        "channels": "4",
        "library": "NCCL 2.7.8+cuda11.0",
        "rings": "2 × 21/12 GB/s over NVL/PIX",
        "transport between nodes": "NET/IB",
        "transport inside nodes": "P2P/IPC, SHM",
        "trees": "2 × 21/12 GB/s over NVL/PIX",
    },
    V2_18_NVLS: {
        "GDRDMA": "on",
        "NVLS": "on",
        "NVLS channels": "16",
        "channels": "16",
        "rings": "8 × 48/48 GB/s over NVL/PIX",
        "transport between nodes": "NET/IB",
        "transport inside nodes": "P2P/CUMEM",
        "trees": "8 × 48.5/24 GB/s over NVL/PXB",
    },
    V2_23_SHARP: {
        "GDRDMA": "on",
        "NVLS": "off",
        "adapters": "mlx5_0:1/IB/SHARP, mlx5_2:1/IB/SHARP",
        "channels": "3",
        "library": "NCCL 2.23.4+cuda12.4",
        "transport between nodes": "COLLNET/SHARP",
    },
    V2_28_SOCKET: {
        "GDRDMA": "off",
        "adapters": "eth0, ib0",
        "library": "NCCL 2.28.9+cuda13.0",
        "transport between nodes": "NET/Socket",
        "transport inside nodes": "SHM",
    },
    RCCL_2_18: {
        "GDRDMA": "on",
        "NVLS": "off",
        "adapters": "cxi (found 4 nics)",
        "channels": "4",
        "library": "RCCL 2.18.3+hip6.0",
        "network plugin": "aws-ofi-rccl 1.4.0",
        "transport between nodes": "NET/AWS Libfabric",
        "transport inside nodes": "P2P/IPC",
    },
}


@pytest.mark.parametrize("lines", SAID, ids=[lines[0] for lines in SAID])
def test_a_version_says_how_it_connects_the_ranks(lines: tuple[str, ...]) -> None:
    found = connections_in([log(*lines)])
    assert found == SAID[lines]
    assert [*found] == sorted(found)
    between = [text for line in lines for text in (line, *OTHERS)]
    assert connections_in([log(*between)]) == found, "lines that are not known are passed over"


@pytest.mark.parametrize(
    ("line", "transport", "direct"),
    [
        ("Ring 00 : 3 -> 8 [send] via NET/IB/0/GDRDMA", "NET/IB", "on"),
        ("Channel 00/1 : 0[0] -> 8[0] [send] via NET/IB/3(2)/GDRDMA(PCI)/Shared", "NET/IB", "on"),
        ("Channel 00/1 : 0[0] -> 8[0] [send] via NET/IBext_v8/3", "NET/IBext_v8", "off"),
        ("Coll 00 : 0 [send] via COLLNET/SHARP/0", "COLLNET/SHARP", "off"),
        ("Channel 02/0 : 1[1] -> 0[0] via P2P/direct pointer/read", "P2P/direct pointer", None),
        ("Channel 02/0 : 1[1] -> 0[0] via P2P/MNNVL", "P2P/MNNVL", None),
        ("Channel 02/0 : 1[1] -> 0[0] via P2P/indirect/2[2]/read", "P2P/indirect", None),
        ("Channel 02 : 1[1] -> 0[0] via SHM/CE/direct", "SHM", None),
        ("Channel 02 : 1[1] -> 0[0] via SHM/direct", "SHM", None),
    ],
)
def test_every_transport_has_its_name(line: str, transport: str, direct: str | None) -> None:
    found = connections_in([log(line)])
    place = "inside" if direct is None else "between"
    assert found.pop(f"transport {place} nodes") == transport
    assert found == ({} if direct is None else {"GDRDMA": direct})


def test_versions_and_time_stamps_are_read_in_the_newer_way_too() -> None:
    newer = log("RCCL version : 2.21.5-HEAD:0cbce2a+", "NET/Socket : Using [0]hsn0:10.0.0.1<0>")
    assert connections_in([newer])["library"] == "RCCL 2.21.5"
    stamped = "".join(f"[2026-01-02 03:04:05] {line}\n" for line in log(*V2_7).splitlines())
    assert connections_in([stamped]) == connections_in([log(*V2_7)])


def test_numbers_are_those_of_the_communicator_with_the_most_ranks() -> None:
    pair = (
        "comm 0x1 rank 0 nranks 2 cudaDev 0 - Init START",
        "24 coll channels, 24 nvls channels, 32 p2p channels, 32 p2p channels per peer",
        "comm 0x1 rank 0 nranks 2 cudaDev 0 - Init COMPLETE",
    )
    for logs in ([log(*pair, *V2_18_NVLS)], [log(*V2_18_NVLS, *pair)]):
        assert connections_in([*logs])["channels"] == "16"
    # Two threads at a time, as one process with several GPUs has them.
    one, other = log(*pair, thread=102), log(*V2_18_NVLS[:1], *V2_18_NVLS[-2:])
    for sides in ((one, other), (other, one)):
        mixed = zip(*(text.splitlines() for text in sides), strict=True)
        assert connections_in(["".join(f"{a}\n{b}\n" for a, b in mixed)])["channels"] == "16"
    # Of one that is not finished the number of ranks is known first.
    begun = "comm 0x2 rank 0 nranks 64 cudaDev 0 - Init START"
    assert connections_in([log(*V2_18_NVLS, begun)])["channels"] == "16"


def test_what_the_processes_of_a_node_say_is_one_record() -> None:
    other = log("Channel 00/0 : 1[1] -> 2[2] via SHM/direct/direct", process=200, thread=201)
    both = connections_in([log(*V2_18_NVLS), other])
    assert both["transport inside nodes"] == "P2P/CUMEM, SHM"
    assert both["channels"] == "16"


def test_a_log_that_is_cut_short_gives_what_is_there() -> None:
    whole = log(*V2_7)
    cut = whole[: whole.index("p2p channels,") - 9]
    found = connections_in([cut])
    assert found["adapters"] == "mlx5_0:1/IB, mlx5_1:1/IB"
    assert "rings" in found
    assert "channels" not in found
    within_adapters = whole[: whole.index(" ; OOB") - 3]
    assert "adapters" not in connections_in([within_adapters])
    for end in range(0, len(whole), 7):
        connections_in([whole[:end]])


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_log_that_tells_nothing_is_said(tmp_path: Path, is_readable: bool) -> None:
    log_of_process = tmp_path / "nccl.n1.1"
    if is_readable:
        log_of_process.write_text("Some other library\nspeaks here\n")
    else:
        log_of_process.mkdir()
    found, problem = read_logs(tmp_path, "n1.site.org")
    assert found == {}
    assert str(tmp_path) not in known(problem)
    assert log_of_process.exists() is not is_readable


def test_without_logs_nothing_is_said(tmp_path: Path) -> None:
    assert read_logs(tmp_path, "n1.site.org") == ({}, None)
    (tmp_path / "nccl.n1.1").touch()
    assert read_logs(tmp_path, "n1.site.org") == ({}, None)


def test_what_no_terminal_can_print_is_escaped(tmp_path: Path) -> None:
    text = log("NET/OFI Selected provider is c\x1bi", "NET/OFI Using aws-ofi-nccl 1.\xff")
    (tmp_path / "nccl.n1.1").write_bytes(text.encode("latin-1"))
    found, _ = read_logs(tmp_path, "n1.site.org")
    assert found["adapters"] == "c\\x1bi"
    assert found["network plugin"].isprintable()


def test_nccl_is_asked_into_its_folder_unless_the_user_asks_it(tmp_path: Path) -> None:
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"):
        assert log_variables(tmp_path, {name: "WARN"}) == {}
    found = log_variables(tmp_path, {"NCCL_SOCKET_IFNAME": "ib0"})
    assert found["NCCL_DEBUG"] == "INFO"
    assert found["NCCL_DEBUG_SUBSYS"] == "INIT,GRAPH,NET"
    assert log_variables(tmp_path / "absent", {}) == {}, "it would print all lines"


def test_each_host_reads_its_own_logs_of_a_folder_that_hosts_share(tmp_path: Path) -> None:
    (tmp_path / "nccl.n1.1").write_text(log(*V2_7))
    (tmp_path / "nccl.n2.1").write_text(log(*V2_28_SOCKET))
    assert read_logs(tmp_path, "n2") == (SAID[V2_28_SOCKET], None)
    assert [path.name for path in tmp_path.iterdir()] == ["nccl.n1.1"]


def test_a_percent_sign_in_the_folder_is_doubled_as_nccl_reads_it(tmp_path: Path) -> None:
    (tmp_path / "a%h").mkdir()
    assert log_variables(tmp_path / "a%h", {})["NCCL_DEBUG_FILE"].endswith("/a%%h/nccl.%h.%p")
