"""Ports and TCP of hosts on real Ethernet: links that go down, and packets that are lost."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hosts import Host, outside_environment, skip_without_hosts, start_hosts
from measuring import REPOSITORY

from gpuscale.records import NodeEvidence
from gpuscale.records.json_text import from_json
from gpuscale.records.node_evidence import Port

pytestmark = pytest.mark.scheduler

METER = """
import socket, subprocess, sys, time
from pathlib import Path
from gpuscale.measure.evidence.network import NetworkMeter
from gpuscale.records import NodeEvidence
from gpuscale.records.json_text import to_json

def run(command):
    subprocess.run(command.split(), check=True)

def send(address, count):
    with socket.create_connection((address, 7777)) as connection:
        connection.sendall(bytes(count))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)

for _ in range(6000):
    try:
        send("10.77.0.2", 1)
        break
    except OSError:
        # The other host does not listen yet.
        time.sleep(0.1)
meter = NetworkMeter()
exec(sys.argv[1])
print(to_json(NodeEvidence(host="n1", ports=meter.read())))
"""
SINK = """
import socket

server = socket.create_server(("", 7777))
while True:
    connection, _ = server.accept()
    with connection:
        while connection.recv(65536):
            pass
"""
FLAP = """
run("ip link set eth0 down")
run("ip link set eth0 up")
while Path("/sys/class/net/eth0/operstate").read_text() != "up\\n":
    time.sleep(0.01)
send("10.77.0.2", 1000)
"""
# A queue of a few packets, as the tests of the kernel have it for a lossy link.
LOSS = """
run("tc qdisc replace dev eth0 root tbf rate 50mbit burst 16kb limit 20kb")
send("10.77.0.2", 20_000_000)
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """The first of two hosts; the second takes all that is sent to it."""
    skip_without_hosts((), "")
    with ExitStack() as stack:
        _, first, second = start_hosts(stack, tmp_path, ["n1", "n2"])
        environment = outside_environment()
        see_own = ("mount", "-t", "sysfs", "none", "/sys")
        mounted = first.run(*see_own, folder=tmp_path, environment=environment)
        assert mounted.returncode == 0, mounted.stdout
        command = (sys.executable, "-c", SINK)
        log = tmp_path / "sink"
        sink = second.start(*command, folder=tmp_path, log=log, environment=environment)
        stack.callback(sink.wait)
        stack.callback(sink.kill)
        yield first


def ports_after(host: Host, action: str, folder: Path) -> dict[str, Port]:
    """The ports of a host, by name, that sees its own `/sys`, after an action there."""
    environment = {**outside_environment(), "PYTHONPATH": str(REPOSITORY)}
    command = (sys.executable, "-c", METER, action)
    answer = host.run(*command, folder=folder, environment=environment)
    assert answer.returncode == 0, answer.stdout
    evidence = from_json(NodeEvidence, answer.stdout.splitlines()[-1])
    return {port.name: port for port in evidence.ports}


def test_a_link_that_goes_down_and_up_during_a_run_is_counted(host: Host, tmp_path: Path) -> None:
    port = ports_after(host, FLAP, tmp_path)["eth0"]
    assert (port.kind, port.state, port.absent) == ("ethernet", "up", {})
    assert port.growth_of("carrier_changes") == 2


def test_packets_that_a_link_drops_are_counted_as_sent_again(host: Host, tmp_path: Path) -> None:
    healthy = ports_after(host, "send('10.77.0.2', 1000)", tmp_path)["TCP"]
    lossy = ports_after(host, LOSS, tmp_path)["TCP"]
    few, many = (port.growth_of("RetransSegs") for port in (healthy, lossy))
    assert few is not None
    assert many is not None
    assert many > 10 + 10 * few
