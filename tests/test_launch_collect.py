"""From what each rank saw to one run: whose time counts, and whose phases explain it."""

from pathlib import Path

import pytest
from builders import request, run
from changing import replace

from gpuscale.launch.collect import collect_run
from gpuscale.records import Phases, Run
from gpuscale.records.request import Measurement, RankOutcome, RankWindow
from gpuscale.run_directory import RunDirectory


def own_phases(forward_s: float, backward_s: float) -> Phases:
    return Phases(
        data_s=0.0, h2d_s=0.0, forward_s=forward_s, backward_s=backward_s, optimizer_s=0.0
    )


def outcome(rank: int, pace_s: float | None, busy_s: list[float], forward_s: float) -> RankOutcome:
    report = replace(run(2, 0.2).ranks[rank], pace_s=pace_s)
    return RankOutcome(
        report=report,
        joined_at_s=1.7e9 + 1,
        measurement=Measurement(
            warmup_steps=2,
            warmup_s=0.4,
            steps_per_window=1,
            windows=tuple(
                RankWindow(
                    started_at_s=1.7e9 + 2 + number,
                    busy_s=seconds,
                    synchronized=True,
                    phases=own_phases(forward_s, seconds - forward_s),
                )
                for number, seconds in enumerate(busy_s)
            ),
        ),
    )


def collected(tmp_path: Path, outcomes: list[RankOutcome]) -> Run:
    directory = RunDirectory(path=tmp_path)
    for each in outcomes:
        directory.outcome(each.report.rank).write(each)
    return collect_run(request(2), directory, None, started_at_s=1.7e9, wall_s=9.0)


# Ranks leave the last all-reduce together: which of them was busy longest is chance.
HAIRS = [0.001, -0.001, 0.002, -0.002, 0.001, -0.001, 0.002, -0.001, -0.002, 0.001]


@pytest.mark.parametrize("slow", [0, 1])
def test_phases_of_all_windows_are_those_of_the_rank_that_the_others_wait_for(
    tmp_path: Path, slow: int
) -> None:
    paces_s, forwards_s = [0.12, 0.12], [0.04, 0.04]
    paces_s[slow], forwards_s[slow] = 0.19, 0.09
    times_s = [[0.2 for _ in HAIRS], [0.2 + hair for hair in HAIRS]]
    joined = collected(
        tmp_path, [outcome(rank, paces_s[rank], times_s[rank], forwards_s[rank]) for rank in (0, 1)]
    )
    assert joined.is_valid, joined.failure
    assert [window.time_s for window in joined.windows] == [max(0.2, 0.2 + h) for h in HAIRS]
    shown = [window.phases for window in joined.windows if window.phases is not None]
    assert [phases.forward_s for phases in shown] == [0.09] * len(HAIRS)
    # Where the other rank took longer, this one waited: in its backward pass.
    for window, phases in zip(joined.windows, shown, strict=True):
        assert phases.total_s == pytest.approx(window.time_s)


def test_without_paces_the_first_ranks_phases_are_shown(tmp_path: Path) -> None:
    joined = collected(
        tmp_path, [outcome(rank, None, [0.2] * 10, 0.04 + 0.01 * rank) for rank in (0, 1)]
    )
    assert {window.phases.forward_s for window in joined.windows if window.phases} == {0.04}
