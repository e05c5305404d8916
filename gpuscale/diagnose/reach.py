"""From which number of GPUs on a part is lost, and whether that is where nodes meet."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuscale.diagnose.changes import Change
from gpuscale.diagnose.steps import Part
from gpuscale.diagnose.wording import gpus_named

_AS_LARGE = 0.25
"""The same loss is elsewhere too where it is at least this part of it, relative to the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What is known of one number of GPUs."""

    changes: Mapping[Part, Change]
    step_time_s: float
    """In the baseline, as a mean over runs."""
    nodes: int

    def relative_loss(self, part: Part) -> float:
        """Lost seconds of a part over the step time of the baseline."""
        return self.changes[part].lost_s / self.step_time_s


def reach_of(part: Part, gpus: int, points: Mapping[int, Point]) -> str:
    """`from 8 GPUs on, where the ranks lie on 2 nodes; not on 1, 2 and 4 GPUs`.

    Empty where no other number of GPUs tells anything of the part.
    """
    known = {count: point for count, point in points.items() if part in point.changes}
    if len(known) < 2 or gpus not in known:
        return ""
    least = _AS_LARGE * known[gpus].relative_loss(part)
    lost = sorted(
        count
        for count, point in known.items()
        if count == gpus
        or (
            point.changes[part].lost_s > point.changes[part].noise_s
            and point.relative_loss(part) >= least
        )
    )
    spared = sorted(known.keys() - lost)
    if not spared:
        return f"on {gpus_named(lost)} alike"
    text = f"{_where(lost, spared)}{_boundary(lost[0], spared, points)}"
    return f"{text}, not on {gpus_named(spared)}"


def _where(lost: list[int], spared: list[int]) -> str:
    if max(spared) < lost[0]:
        return f"from {gpus_named(lost[:1])} on"
    return f"on {gpus_named(lost)}{' only' if len(lost) == 1 else ''}"


def _boundary(first: int, spared: list[int], points: Mapping[int, Point]) -> str:
    """Whether the loss begins where the ranks no longer lie on one node."""
    smaller = [count for count in spared if count < first]
    nodes = points[first].nodes
    if nodes > 1 and smaller and all(points[count].nodes == 1 for count in smaller):
        return f", where the ranks lie on {nodes} nodes"
    if smaller and nodes == 1:
        return ", within one node"
    return ""
