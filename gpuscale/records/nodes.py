"""What a look at the nodes of a job sees: how fast each computes, and each pair communicates."""

from typing import Literal

import msgspec


class NodeProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the one rank on each node."""

    message_bytes: int
    """Sent from each node to each other one, several times."""
    repeats: int
    timeout_s: float


class SendTime(msgspec.Struct, frozen=True, kw_only=True):
    """How long a message took to another node and its receipt back."""

    to: int
    """The other's place among the nodes."""
    time_s: float
    """The shortest of several, in seconds."""


class NodeProbe(msgspec.Struct, frozen=True, kw_only=True):
    """What the rank on one node saw."""

    host: str
    compute_s: tuple[float, ...]
    """Seconds for the same computation, of each of its GPUs in turn, or of one CPU core; the
    shortest of several."""
    sends: tuple[SendTime, ...]


class NodeFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Something slow, as far as it can be told where."""

    kind: Literal["computation", "node links", "link", "direction"]
    hosts: tuple[str, ...]
    """The node, or the two ends of the link."""
    slower: float
    """How many times as long it takes as what it is compared with."""
    text: str
    """A sentence for people, with what to do."""
