"""Devices that changed beside the others from one night to the next."""

from collections.abc import Mapping

import pytest
from builders import run
from changing import replace

from gpuscale.analysis.history.device_paces import devices_that_changed
from gpuscale.records import RankReport, Run


def night(paces_s: Mapping[str, float], *, gpus: int | None = None) -> list[Run]:
    """One run on the first of these devices, by default on all."""
    used = dict([*paces_s.items()][:gpus])
    ranks = tuple(
        RankReport(rank=i, host="node1", device_uuids=(uuid,), pace_s=pace_s)
        for i, (uuid, pace_s) in enumerate(used.items())
    )
    return [replace(run(len(used), 0.1), ranks=ranks)]


# No two devices of a kind are quite alike.
WELL = {"GPU-a": 0.100, "GPU-b": 0.104, "GPU-c": 0.098, "GPU-d": 0.101}


def test_a_device_that_got_slower_than_the_others_is_named_with_its_slowdown() -> None:
    sick = {**WELL, "GPU-c": 0.098 * 1.12}
    (found,) = devices_that_changed(night(WELL), night(sick), slower=True)
    assert (found.uuid, found.host) == ("GPU-c", "node1")
    assert found.slowdown == pytest.approx(0.12)
    (mended,) = devices_that_changed(night(sick), night(WELL), slower=False)
    assert mended.slowdown == pytest.approx(1 / 1.12 - 1)
    assert devices_that_changed(night(sick), night(WELL), slower=True) == ()


def test_what_struck_all_devices_names_none() -> None:
    slower = {uuid: 1.2 * pace_s for uuid, pace_s in WELL.items()}
    assert devices_that_changed(night(WELL), night(slower), slower=True) == ()
    # 2% is within what devices scatter by.
    warm = {**WELL, "GPU-b": 1.02 * WELL["GPU-b"]}
    assert devices_that_changed(night(WELL), night(warm), slower=True) == ()


def test_of_two_devices_the_one_that_changed_is_named() -> None:
    two = {uuid: WELL[uuid] for uuid in ("GPU-a", "GPU-b")}
    sick = {**two, "GPU-a": 0.115}
    (found,) = devices_that_changed(night(two), night(sick), slower=True)
    assert found.uuid == "GPU-a"
    assert found.slowdown == pytest.approx(0.15)


def test_a_device_is_held_against_itself_in_the_same_rows_only() -> None:
    # Alone it takes 80 ms; beside others 100 ms, as ever.
    alone = night({"GPU-a": 0.080})
    before, now = [*night(WELL), *alone], night(WELL)
    assert devices_that_changed(before, now, slower=True) == ()
    assert devices_that_changed(alone, alone, slower=True) == ()
    assert devices_that_changed([], now, slower=True) == ()
