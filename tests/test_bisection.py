"""The search for changes that make training slower, where the truth is known."""

import math
import random
from collections.abc import Sequence

import pytest
from bisecting import (
    KINDS,
    Machine,
    Tally,
    additive,
    culprits,
    loss_of_a_culprit,
    search,
    searched,
    truth,
)
from statements import known

from gpuscale.campaigns.bisection.kinds import Applied
from gpuscale.campaigns.bisection.trials import OutOfBudgetError
from gpuscale.records.cause import BisectionFinding


def machine(losses: dict[int, float], *, seed: int = 1, noise: float = 0.002) -> Machine:
    return Machine(additive(losses), noise, random.Random(seed))


@pytest.mark.parametrize(
    ("noise", "sizes", "count", "fewest_right"),
    [(0.01, (4, 40), 25, 22)]
    + [
        pytest.param(noise, (4, 11, 33, 64), 400, 380, marks=pytest.mark.thorough)
        for noise in (0.001, 0.005, 0.01, 0.02, 0.05)
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_culprits_of_every_kind_are_found_in_few_trials_and_no_others(
    kind: str, noise: float, sizes: Sequence[int], count: int, fewest_right: int
) -> None:
    for changes in sizes:
        tally, of_each = Tally(), 0
        for seed in range(count):
            rng = random.Random(f"{kind} {changes} {noise} {seed}")
            true = truth(kind, changes, loss_of_a_culprit(noise), rng)
            tally.add(search(Machine(true.effect, noise, rng, drift=noise / 20), changes), true)
            of_each = len(true.culprits)
        assert tally.wrong <= 0.01 * count
        assert tally.right >= fewest_right
        if kind in ("one", "two", "three", "partial"):
            proofs = 3 + 2 * 3
            assert tally.trials / count <= 1.5 * of_each * math.log2(changes) + proofs


def test_a_proof_has_both_speeds() -> None:
    found = search(machine({5: 0.1}), 12)
    assert found.finding is BisectionFinding.FOUND
    assert culprits(found) == {5}
    loss = math.exp(-0.1) - 1
    assert known(found.alone).value == pytest.approx(loss, abs=0.02)
    assert known(found.taken_back).value == pytest.approx(0, abs=0.02)


def test_equal_environments_end_after_one_trial_and_faster_and_noisy_ones_are_said() -> None:
    same = search(machine({}), 12)
    assert (same.finding, same.trials) == (BisectionFinding.SAME, 1)
    assert search(machine({3: -0.1}), 12).finding is BisectionFinding.REVERSED
    noisy = search(machine({3: 0.02}, noise=0.1), 12)
    assert (noisy.finding, noisy.reason) == (BisectionFinding.UNDECIDED, "noise")


def test_a_budget_that_ends_leaves_suspects() -> None:
    found = search(machine({5: 0.1}), 16, trials=3)
    assert (found.finding, found.reason, found.trials) == (BisectionFinding.SUSPECTED, "trials", 3)
    assert 5 in culprits(found)
    assert len(culprits(found)) < 16
    early = search(machine({5: 0.1}), 16, trials=1)
    assert len(culprits(early)) == 16


def test_time_that_is_up_before_anything_is_known_is_undecided() -> None:
    def late(_: Applied) -> float:
        raise OutOfBudgetError("time")

    ended = known(searched(late, range(4)))
    assert (ended.finding, ended.reason, ended.loss) == (BisectionFinding.UNDECIDED, "time", None)


def test_mixtures_that_do_not_run_are_skipped() -> None:
    def breaks(applied: Applied) -> bool:
        # Half of a pair.
        return (7 in applied) != (8 in applied)

    truth_is = machine({3: 0.1})
    truth_is.broken = breaks
    found = search(truth_is, 16)
    assert (found.finding, culprits(found)) == (BisectionFinding.FOUND, frozenset({3}))
    together = machine({7: 0.1})
    together.broken = breaks
    found = search(together, 16)
    assert (found.finding, found.culprits) == (BisectionFinding.FOUND, ((7, 8),))


def test_an_end_without_a_number_ends_the_search() -> None:
    made = machine({3: 0.1})
    made.broken = lambda applied: len(applied) == 4
    assert searched(made.make_run, range(4)) is None


def test_groups_are_split_last() -> None:
    tried: list[Applied] = []
    searched(machine({2: 0.1}).make_run, (0, 0, 1, 1, 1, 1), tried=tried)
    # The first halves are groups, although the middle lies inside of one.
    good, _, _, first_halves, *_ = tried
    assert not good
    assert first_halves == {0, 1}


def test_a_run_that_fails_once_is_made_again() -> None:
    made = machine({3: 0.1})

    def once(applied: Applied) -> float | None:
        log_s = made.make_run(applied)
        return None if made.runs == 4 else log_s

    found = known(searched(once, range(8)))
    assert made.runs > 4
    assert (found.finding, culprits(found)) == (BisectionFinding.FOUND, frozenset({3}))


@pytest.mark.parametrize("slow", [{17}, {0}, {39}, {5, 30}])
def test_changes_in_order_are_proved_beside_the_ones_before_them(slow: set[int]) -> None:
    made = machine(dict.fromkeys(slow, 0.1))
    # Five commits do not start.
    made.broken = lambda applied: len(applied) in (8, 19, 20, 21, 33)
    tried: list[Applied] = []
    found = known(searched(made.make_run, range(40), is_ordered=True, tried=tried))
    assert (found.finding, culprits(found)) == (BisectionFinding.FOUND, frozenset(slow))
    assert all(applied == set(range(len(applied))) for applied in tried)
    assert known(found.alone).value == pytest.approx(math.exp(-0.1) - 1, abs=0.02)


def test_a_commit_beside_ones_that_do_not_start_is_one_of_several() -> None:
    made = machine({20: 0.1})
    made.broken = lambda applied: len(applied) in (20, 21)
    found = known(searched(made.make_run, range(40), is_ordered=True))
    assert (found.finding, found.culprits) == (BisectionFinding.FOUND, ((19, 20, 21),))
