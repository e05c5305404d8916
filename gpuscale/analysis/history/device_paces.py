"""Find devices that became slower or faster, relative to the others, from one night to the next."""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuscale.records import PointKey, Run

_SMALLEST = math.log(1.03)
_DEVIATIONS = 6.0
"""Distance from the median change, in median absolute deviations, at which a device stands out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChange:
    """A device whose pace changed relative to other devices."""

    uuid: str
    host: str
    slowdown: float
    """Relative change of the device's step time (without waits) compared with the typical change;
    0.12 means 12% longer."""


def devices_that_changed(
    before: Iterable[Run], now: Iterable[Run], *, slower: bool
) -> tuple[DeviceChange, ...]:
    """Return devices that became slower (or faster) relative to the others, largest change first.

    Each device is compared with itself in the same rows, since no two devices are equally fast.
    With only two devices, the one that changed in the given direction is returned.
    """
    old, new = _log_paces(before), _log_paces(now)
    by_row: dict[tuple[str, str], list[float]] = {}
    for point, device in new.keys() & old.keys():
        change = statistics.fmean(new[point, device]) - statistics.fmean(old[point, device])
        by_row.setdefault(device, []).append(change if slower else -change)
    if len(by_row) < 2:
        return ()
    changes = {device: statistics.median(values) for device, values in by_row.items()}
    usual = statistics.median_low(changes.values())
    scatter = statistics.median(abs(change - usual) for change in changes.values())
    far = max(_SMALLEST, 0.0 if len(changes) == 2 else _DEVIATIONS * scatter)
    found = {device: change - usual for device, change in changes.items() if change - usual > far}
    return tuple(
        DeviceChange(uuid=uuid, host=host, slowdown=math.expm1(change if slower else -change))
        for (host, uuid), change in sorted(found.items(), key=lambda item: -item[1])
    )


def _log_paces(runs: Iterable[Run]) -> Mapping[tuple[PointKey, tuple[str, str]], list[float]]:
    """Log seconds per step, by row and device, of ranks that use exactly one device."""
    logs: dict[tuple[PointKey, tuple[str, str]], list[float]] = {}
    for run in runs:
        point = PointKey.of(run)
        for rank in run.ranks:
            if rank.pace_s and len(rank.device_uuids) == 1:
                place = point, (rank.host, rank.device_uuids[0])
                logs.setdefault(place, []).append(math.log(rank.pace_s))
    return logs
