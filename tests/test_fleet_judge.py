"""Which nodes of a simulated fleet are called sick."""

import math
import random
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from changing import replace
from simulated_fleet import DRIFTS, Fleet
from statements import known

from gpuscale.analysis.fleet_drift import drift_levels
from gpuscale.judge.fleet import judge
from gpuscale.records.cause import FleetRow, NodeState, NodeVerdict

ALL = FleetRow(gpus=8)


def fleet_of(seed: int, nodes: int = 60, *, spread: float = 0.005, **settings: Any) -> Fleet:
    return Fleet(rng=random.Random(seed), nodes=nodes, spread=spread, **settings)


def node_of(verdict: Sequence[NodeVerdict], name: str) -> NodeVerdict:
    (found,) = [node for node in verdict if node.node == name]
    return found


def sick(verdict: Sequence[NodeVerdict]) -> set[str]:
    return {node.node for node in verdict if node.state is NodeState.SICK}


@pytest.mark.parametrize("drift", DRIFTS)
def test_a_slow_node_and_a_slow_gpu_are_found_in_two_jobs(drift: str) -> None:
    fleet = fleet_of(1, nodes=100, drift=DRIFTS[drift])
    slow, hot = fleet.slow_node(17, 0.05), fleet.slow_gpu(42, 3, 0.08)
    sweep = fleet.sweep()
    assert {slow, hot} <= {*sweep.asked}
    assert sick(sweep.verdict) == {slow, hot}
    of_gpu, of_node = node_of(sweep.verdict, hot), node_of(sweep.verdict, slow)
    assert of_gpu.row == FleetRow(gpus=1, device=3)
    assert of_node.row == ALL
    assert of_gpu.jobs == of_gpu.jobs_slow == 2
    assert sweep.verdict[0] == of_gpu


def test_healthy_nodes_are_not_called_slow_for_their_hour() -> None:
    """A drift of 3 % is ten times the spread, so that by itself it would make half of them slow."""
    fleets = [fleet_of(n, spread=0.003, noise=0.002, drift=DRIFTS["rising"]) for n in range(4)]
    assert sum(bool(sick(fleet.sweep().verdict)) for fleet in fleets) <= 1


def test_a_drift_goes_on_to_both_ends_of_a_sweep() -> None:
    """Second jobs come last, with nothing after them; the mean of what is near would lag behind."""
    fleet = fleet_of(9, nodes=200, spread=0.003, noise=0.001, gpus=1)
    places = [place / 200 for place in range(200)]
    visits = [fleet.visit(node, 0, at) for node, at in enumerate(places)]
    logs = [fleet.effects[node][FleetRow(gpus=1)] + 0.1 * at for node, at in enumerate(places)]
    levels = drift_levels(visits, logs)
    errors = [level - 0.1 * at for level, at in zip(levels, places, strict=True)]
    # The mean of the nearest 40 would be 0.01 off at each end.
    assert abs(statistics.fmean(errors[:5])) < 0.004
    assert abs(statistics.fmean(errors[-5:])) < 0.004


@pytest.mark.parametrize(
    ("seed", "jobs", "state"), [(8, 3, NodeState.SICK), (18, 4, NodeState.HEALTHY)]
)
def test_a_node_left_open_gets_up_to_four_jobs(seed: int, jobs: int, state: NodeState) -> None:
    fleet = fleet_of(seed, spread=0.008, noise=0.01, gpus=1)
    slow = fleet.slow_node(17, 0.04)
    sweep = fleet.sweep()
    node = node_of(sweep.verdict, slow)
    assert (node.jobs, node.state) == (jobs, state)
    assert sweep.asked.count(slow) == jobs - 1


def test_no_node_is_sick_before_a_second_job_or_where_that_does_not_show_the_loss() -> None:
    fleet = fleet_of(4)
    slow = fleet.slow_node(5, 0.1)
    once = [visit for visit in fleet.sweep().visits if visit.job == 0]
    node = node_of(judge(once), slow)
    assert (node.state, node.needs_job) == (NodeState.UNCLEAR, True)
    fleet.slow_node(5, 1 - 1 / 0.9)
    node = node_of(judge([*once, fleet.visit(5, 1, 0.95)]), slow)
    assert (node.state, node.needs_job, node.jobs_slow) == (NodeState.UNCLEAR, False, 1)


def test_the_loss_is_that_of_the_later_jobs_since_the_first_was_chosen_for_its_loss() -> None:
    told, first = [], []
    for seed in range(30):
        fleet = fleet_of(seed, nodes=30, noise=0.01, gpus=1)
        name = fleet.slow_node(7, 0.03)
        truth = fleet.effects[7][FleetRow(gpus=1)]
        sweep = fleet.sweep()
        node = node_of(sweep.verdict, name)
        if node.jobs > 1 and node.row is not None and node.row.device is None and node.speed:
            told.append(-math.log1p(node.speed.value) - truth)
            own = [times for v in sweep.visits if v.node == name for times in v.step_times_s[0][1]]
            logs = [*map(math.log, own)]
            first.append(statistics.fmean(logs[:3]) - statistics.fmean(logs[3:]))
    assert len(told) >= 12
    assert abs(statistics.fmean(told)) < 0.003
    assert statistics.fmean(first) > 0.001


def test_a_node_that_is_much_slower_in_every_job_is_never_passed_among_nodes_that_differ() -> None:
    """Among six nodes that differ by 30 %, even one that takes three times as long is no proof."""
    fleet = fleet_of(8, nodes=6, spread=0.3, noise=0.05, gpus=1)
    slow = fleet.slow_node(0, 0.7)
    node = node_of(fleet.sweep().verdict, slow)
    assert (node.state, node.jobs, node.jobs_slow) == (NodeState.UNCLEAR, 2, 2)


def test_a_node_that_has_always_been_slow_is_told_from_one_that_became_so() -> None:
    fleet = fleet_of(5, noise=0.003)
    always = fleet.slow_node(3, 0.05)
    past = [fleet.sweep().visits for _ in range(2)]
    became = fleet.slow_node(4, 0.05)
    verdict = fleet.sweep(past).verdict
    assert sick(verdict) == {always, became}
    old, new = node_of(verdict, always), node_of(verdict, became)
    assert old.against == "fleet"
    assert old.past == pytest.approx(-0.05, abs=0.02)
    assert new.past == pytest.approx(0.0, abs=0.02)
    assert known(new.speed).value == pytest.approx(-0.05, abs=0.02)


def test_where_healthy_nodes_differ_much_only_the_past_shows_what_became_slow() -> None:
    fleet = fleet_of(6, spread=0.02)
    past = [fleet.sweep().visits for _ in range(2)]
    slow = fleet.slow_node(4, 0.05)
    sweep = fleet.sweep(past)
    assert sick(sweep.verdict) == {slow}
    assert node_of(sweep.verdict, slow).against == "past"
    assert sick(judge(sweep.visits)) == set()


def test_what_was_not_measured_is_listed_and_never_healthy() -> None:
    fleet = fleet_of(7, nodes=20)
    visits = [fleet.visit(node, 0, node / 20) for node in range(20)]
    visits[3] = replace(visits[3], step_times_s=visits[3].step_times_s[:-1])
    visits[4] = replace(visits[4], kind="cpu, Xeon")
    verdict = judge(visits, not_measured={"nid9000": ("down", "fan")})
    reasons = {n.node: n.reason for n in verdict if n.reason}
    assert reasons == {"nid0003": "row missing", "nid0004": "none alike", "nid9000": "down"}
    assert sum(n.state is NodeState.HEALTHY for n in verdict) == 18
    assert judge([]) == ()
