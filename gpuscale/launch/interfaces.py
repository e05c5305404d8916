"""Which network interface gloo takes on a host that does not know its own address."""

import fcntl
import socket
import struct
from collections.abc import Callable, Mapping, Sequence

_VARIABLE = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915
_ANY_PORT = 9


def gloo_variables(given: Mapping[str, str], hosts: Sequence[str]) -> dict[str, str]:
    """`GLOO_SOCKET_IFNAME` where gloo needs it to reach the other hosts; nothing otherwise.

    By itself gloo listens where the host's own name leads. On many machines that is 127.0.1.1
    (Debian writes it into /etc/hosts), which is of no use to the other hosts.
    """
    me = socket.gethostname()
    if _VARIABLE in given or len(hosts) < 2 or not leads_nowhere(me):
        return {}
    interface = interface_towards([host for host in hosts if not is_same_host(host, me)])
    return {} if interface is None else {_VARIABLE: interface}


def is_same_host(one: str, other: str) -> bool:
    """Whether two names are of one host, with or without its domain."""
    return one.split(".", 1)[0] == other.split(".", 1)[0]


def leads_nowhere(name: str, resolve: Callable[[str], str] = socket.gethostbyname) -> bool:
    """Whether a host's name has no address that another host could use."""
    try:
        return resolve(name).startswith("127.")
    except OSError:
        return True


def interface_towards(hosts: Sequence[str]) -> str | None:
    """The interface by which this host sends to the first of the hosts that it can send to."""
    for host in hosts:
        address = _own_address_towards(host)
        for _, name in socket.if_nameindex():
            if address is not None and _address_of(name) == address:
                return name
    return None


def _own_address_towards(host: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: this only asks the system for its route.
            probe.connect((host, _ANY_PORT))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _address_of(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
        return socket.inet_ntoa(answer[20:24])
