"""The steps of a diagnosis by worked examples, on both sides of each limit."""

import math
import random
from collections.abc import Sequence

import pytest
from builders import gpu_summary, phased_run, phases, run, with_values
from builders.causes import row_of
from changing import replace
from statements import known

from gpuscale.analysis.step_parts import Part, Rank, Step, steps_of
from gpuscale.judge.diagnose.causes import certain_straggler, stragglers
from gpuscale.judge.diagnose.row_evidence import PointEvidence, onset_of
from gpuscale.judge.diagnose.step_parts import PartChange, changes_of, stragglers_of, without_turns
from gpuscale.judge.diagnose.symptoms import explaining_clocks, symptoms_of
from gpuscale.records import GpuSummary, PointKey
from gpuscale.records.cause import CauseKind, ComparedWith, DeviceSymptom, Onset


def rank(number: int, pace_s: float, *, host: str = "node1", devices: tuple[str, ...] = ()) -> Rank:
    return Rank(rank=number, host=host, device_uuids=devices, pace_s=pace_s, phases=phases())


def step(*ranks: Rank, summaries: Sequence[GpuSummary] = ()) -> Step:
    own = tuple(sorted(ranks, key=lambda each: each.pace_s))
    made = replace(run(len(ranks), 9.0), gpu_summaries=tuple(summaries))
    return Step(time_s=9.0, communication_s=0.0, ranks=own, run=made)


def paced(*paces_s: float) -> Step:
    """A run of ranks on one host, numbered from 0 on."""
    return step(*(rank(number, pace_s) for number, pace_s in enumerate(paces_s)))


def named(*steps: Step, usual_skew_s: float = 0.0) -> tuple[tuple[int, ...], int]:
    found = stragglers_of(steps, usual_skew_s)
    return found.ranks, known(found.seen_in)[0]


@pytest.mark.parametrize(
    ("paces_s", "ranks"),
    [
        # The median rank is the second of four; the skew is 1 s, half of it is the limit.
        ((1.0, 1.0, 1.5, 2.0), (2, 3)),
        ((1.0, 1.0, 1.49, 2.0), (3,)),
        ((2.0, 1.0, 1.0, 1.0), (0,)),
        ((1.0, 2.0), (1,)),
    ],
)
def test_a_straggler_lags_behind(paces_s: tuple[float, ...], ranks: tuple[int, ...]) -> None:
    assert named(paced(*paces_s)) == (ranks, 1)


def test_a_straggler_is_so_in_two_thirds_of_the_runs_that_have_skew() -> None:
    first, second = paced(2.0, 1.0, 1.0), paced(1.0, 2.0, 1.0)
    assert named(second, second, first) == ((1,), 2)
    assert named(second, second, second) == ((1,), 3)
    assert named(second, first) == ((), 0)
    assert named(second, first, paced(1.0, 1.0, 2.0)) == ((), 0)


def test_only_runs_with_unusual_skew_tell_who_is_a_straggler() -> None:
    for usual_skew_s, second_s, ranks in (
        # Skews of 3 s and 1 s have a mean of 2 s: half of that is the limit.
        *((0.0, 2.0, ()), (0.1, 2.0, (0,))),
        # Skews of 3 s and 1.5 s have one of 2.25 s: the limit is halfway to it from the usual.
        *((0.75, 2.5, ()), (0.8, 2.5, (0,))),
    ):
        runs = (paced(4.0, 1.0, 1.0), paced(1.0, second_s, 1.0))
        assert named(*runs, usual_skew_s=usual_skew_s)[0] == ranks


def test_a_rank_that_is_slow_at_last_does_not_make_the_other_one_seem_slower() -> None:
    # Two ranks alike are the slower one in turns; then rank 1 takes 1.4 times as long. The faster
    # of two runs 0.04 s before their mean, by which computing would seem to grow.
    draw, lost = random.Random(5), dict.fromkeys(Part, 0.0)
    for _ in range(200):
        before, after = (
            [paced(draw.gauss(1, 0.07), slower * draw.gauss(1, 0.07)) for _ in range(runs)]
            for slower, runs in ((1.0, 12), (1.4, 6))
        )
        usual = without_turns(before, after)
        for part, change in changes_of(usual, after, 0.0).items():
            lost[part] += change.lost_s / 200
    assert abs(lost[Part.COMPUTING]) < 0.015
    assert lost[Part.SKEW] == pytest.approx(0.4 - 0.04, abs=0.015)


def test_a_device_is_a_straggler_whichever_rank_it_serves_and_else_a_rank_number_is() -> None:
    def served_by(*devices: str, slow: int) -> Step:
        paces_s = [3.0 + slow / 2 if number == slow else 1.0 for number in (0, 1)]
        return step(*(rank(n, paces_s[n], devices=(each,)) for n, each in enumerate(devices)))

    turned = served_by("B", "A", slow=1)
    in_turn = stragglers_of((served_by("A", "B", slow=0), turned), 0.0)
    assert (in_turn.ranks, in_turn.device_uuids) == ((1,), ("A",))
    one_number = stragglers_of((served_by("A", "B", slow=1), turned), 0.0)
    assert (one_number.ranks, one_number.device_uuids) == ((1,), ())


def test_a_host_is_a_straggler_where_all_of_its_ranks_are() -> None:
    for hosts, slow, is_whole_host in (
        ("aaabb", (3, 4), True),
        ("aabbb", (3, 4), False),  # a part of its host
        ("aaabc", (3, 4), False),  # two hosts
        ("aaaab", (4,), False),  # a single rank is named by its number
    ):
        ranks = [rank(n, 2.0 if n in slow else 1.0, host=host) for n, host in enumerate(hosts)]
        found = stragglers_of([step(*ranks)], 0.0)
        assert (found.ranks, found.is_whole_host) == (slow, is_whole_host)


def test_a_straggler_may_wait_for_data() -> None:
    def steps(*data_and_computing_s: tuple[float, float]) -> list[Step]:
        ranks = (
            rank(number, data_s + computing_s)._replace(phases=phases(data_s=data_s))
            for number, (data_s, computing_s) in enumerate(data_and_computing_s)
        )
        return [step(*ranks)]

    for usual_s, late_s, kind in (
        (0.0, 1.0, CauseKind.SLOW_RANK),
        (0.0, 1.125, CauseKind.DATA),
        (0.5, 1.5, CauseKind.SLOW_RANK),  # its batches were late in the baseline too
    ):
        before = steps((1.0, 1.0), (1.0 + usual_s, 1.0 - usual_s))
        known = row_of(before, steps((1.0, 1.0), (1.0 + late_s, 3.0 - late_s)), gpus=2)
        change = known.point.changes[Part.SKEW]
        assert change.lost_s == 2.0
        found = stragglers(known, change)
        assert (found.kind, found.ranks) == (kind, (1,))


def lags(rng: random.Random, runs: int, lag: float = 0.0) -> list[Step]:
    """Runs of two ranks whose paces deviate by 4 %, beside what both share: 30 %."""
    shared = [math.exp(rng.gauss(0, 0.3)) for _ in range(runs)]
    paces = ((1 + lag * rank + rng.gauss(0, 0.04) for rank in (0, 1)) for _ in range(runs))
    return [paced(*(s * pace for pace in each)) for s, each in zip(shared, paces, strict=True)]


def test_a_rank_that_lags_is_named_whatever_all_ranks_share_and_equal_ranks_seldom_are() -> None:
    rng = random.Random(7)

    def named_ranks(before: list[Step], after: list[Step], code: str = "") -> list[tuple[int, ...]]:
        causes = certain_straggler(row_of(before, after, gpus=2), ())
        return [cause.ranks for cause in causes if code in ("", cause.code)]

    equal = [(lags(rng, 6), lags(rng, rng.choice([3, 6]))) for _ in range(1000)]
    slow = [(lags(rng, 6), lags(rng, 6, 0.15)) for _ in range(100)]
    assert sum(len(named_ranks(*sides, "stragglers")) for sides in equal) <= 15
    assert sum(len(named_ranks(*sides)) for sides in equal) <= 50
    assert sum(named_ranks(*sides, "stragglers") == [(1,)] for sides in slow) >= 75
    assert sum(named_ranks(*sides) == [(1,)] for sides in slow) >= 85
    # One that lagged in the baseline too, and one that lags by less than 2 % more, are no cause.
    usual = [named_ranks(lags(rng, 6, 0.12), lags(rng, 6, 0.12)) for _ in range(100)]
    assert sum(map(len, usual)) <= 4
    still = [paced(1.0, 1.1), paced(1.0, 1.1), paced(1.0, 1.1001)]
    assert not named_ranks(still, [paced(1.0, 1.118)] * 3)
    assert named_ranks(still, [paced(1.0, 1.13)] * 3) == [(1,)]
    assert not named_ranks(still, [paced(1.0, 1.13)] * 2)


def test_the_median_rank_is_the_faster_of_the_middle_two() -> None:
    assert [paced(*range(1, n + 1)).median.pace_s for n in (1, 2, 3, 4, 5, 8)] == [1, 1, 2, 2, 3, 4]


def taken(communication_s: float, computing_s: float) -> Step:
    """A run of two ranks that do nothing but compute and communicate."""
    ranks = (rank(0, computing_s), rank(1, computing_s))
    step_s = communication_s + computing_s
    return replace(step(*ranks), time_s=step_s, communication_s=communication_s)


@pytest.mark.parametrize(
    ("after", "communication_s", "computing_s"),
    [
        # What hides communication seems to slow computing: only the rest is a change.
        (taken(0.5, 10.5), 0.0, 0.0),
        (taken(0.5, 10.3), -0.2, 0.0),
        (taken(0.5, 12.0), 0.0, 1.5),
        (taken(1.5, 10.5), 0.5, 0.5),
        (taken(0.5, 9.0), -0.5, -1.0),
    ],
)
def test_computing_hides_transfers(after: Step, communication_s: float, computing_s: float) -> None:
    found = changes_of([taken(1.0, 10.0)], [after], 0.01)
    lost_s = [found[part].lost_s for part in (Part.COMMUNICATION, Part.COMPUTING)]
    assert lost_s == pytest.approx([communication_s, computing_s])


def test_communication_that_noise_turned_below_zero_is_none() -> None:
    found = changes_of([taken(-1.0, 10.0)], [taken(0.5, 10.0)], 0.01)
    change = found[Part.COMMUNICATION]
    assert (change.before_s, change.after_s, change.lost_s) == (0.0, 0.5, 0.5)


def test_shares_are_of_all_that_was_lost_and_noise_is_that_of_runs_and_jobs() -> None:
    found = changes_of([taken(1.0, 10.0)], [taken(2.0, 13.0)], 0.0)
    shares = [found[part].share for part in (Part.COMMUNICATION, Part.COMPUTING, Part.SKEW)]
    assert shares == pytest.approx([0.25, 0.75, 0.0])
    unchanged = changes_of([taken(1.0, 10.0)], [taken(1.0, 10.0)], 0.0)
    assert {change.share for change in unchanged.values()} == {0.0}
    partly = changes_of([taken(1.0, 10.0)], [taken(2.0, 9.0)], 0.0)
    assert [partly[part].share for part in (Part.COMMUNICATION, Part.COMPUTING)] == [1.0, 0.0]
    # Single runs tell no spread: 5% of 11 s each, with three degrees of freedom.
    assert found[Part.COMPUTING].noise_s == pytest.approx(2.353363 * 0.55 * 2**0.5)
    with_jobs = changes_of([taken(1.0, 10.0)], [taken(2.0, 13.0)], 0.1)
    assert with_jobs[Part.COMPUTING].noise_s == pytest.approx(2.353363 * (2 * 0.55**2 + 1) ** 0.5)
    before, after = ([taken(1.0, each) for each in pair] for pair in ((9, 11), (12, 14)))
    several = changes_of(before, after, 0.0)
    # Four runs with squares of 4 s² around their means, and a prior worth three more degrees.
    assert several[Part.COMPUTING].noise_s == pytest.approx(2.015048 * 2**0.5)


def test_a_run_is_taken_apart_where_the_pace_and_the_phases_of_each_rank_are_known() -> None:
    whole = phased_run([phases(forward_s=2.0), phases(forward_s=3.0)], communication_s=0.5)
    (found,) = steps_of([whole])
    assert [found.communication_s, found.skew_s] == pytest.approx([0.5, 1.0])
    assert not steps_of([replace(whole, unsynced_windows=())])
    for lacking in ({"pace_s": None}, {"phases": None}):
        ranks = (whole.ranks[0], replace(whole.ranks[1], **lacking))
        assert not steps_of([replace(whole, ranks=ranks)])


@pytest.mark.parametrize(
    ("lost_s", "share", "stands_out"),
    [(1.1, 0.1, True), (1.0, 0.5, False), (1.1, 0.09, False), (1.1, 1.0, True)],
)
def test_a_part_stands_out_beyond_its_noise(lost_s: float, share: float, stands_out: bool) -> None:
    change = PartChange(
        part=Part.DATA, before_s=4.0, after_s=5.0, lost_s=lost_s, noise_s=1.0, share=share
    )
    assert change.stands_out is stands_out


def summary(uuid: str = "A", /, **values: float) -> GpuSummary:
    return replace(with_values(gpu_summary(0.9), **values), uuid=uuid)


def seen(before: Sequence[GpuSummary], after: Sequence[GpuSummary]) -> list[tuple[object, ...]]:
    then, now = (step(rank(0, 1.0), summaries=each).run for each in (before, after))
    found = symptoms_of([then], [now], {})
    return [(each.uuid, each.counter, each.now, each.usual, each.beside) for each in found]


@pytest.mark.parametrize(
    ("counter", "usual", "now", "told"),
    [
        ("sm_clock_mean_mhz", 1000, 969, True),
        ("sm_clock_mean_mhz", 1000, 970, False),
        ("memory_clock_mean_mhz", 1000, 969, True),
        ("power_limit_w", 300, 299, True),
        ("pcie_width", 16, 8, True),
        ("pcie_generation", 4, 3, True),
        ("nvlink_active_min", 6, 0, True),
        ("nvlink_active_min", 6, 6, False),
    ],
)
def test_a_fallen_counter_is_a_symptom(counter: str, usual: float, now: float, told: bool) -> None:
    found = seen([summary(**{counter: usual})], [summary(**{counter: now})])
    expected = [("A", counter, now, usual, ComparedWith.BASELINE)]
    assert found == (expected if told else [])


def test_a_clock_that_is_unknown_or_0_is_no_symptom() -> None:
    usual = [summary(sm_clock_mean_mhz=1000, nvlink_active_min=6)]
    assert seen(usual, [summary()]) == []
    assert seen(usual, [summary(sm_clock_mean_mhz=0)]) == []


@pytest.mark.parametrize("counter", ["nvlink_errors", "ecc_uncorrected"])
def test_errors_beyond_those_of_the_baseline_are_symptoms(counter: str) -> None:
    assert seen([summary(**{counter: 2})], [summary(**{counter: 2})]) == []
    ((*_, now, _, _),) = seen([summary(**{counter: 2})], [summary(**{counter: 3})])
    assert now == 3
    # The first error of a GPU that the baseline does not have.
    assert len(seen([summary("B", **{counter: 2})], [summary(**{counter: 1})])) == 1


def test_a_clock_event_that_became_more_frequent_by_a_tenth_is_a_symptom() -> None:
    def with_share(share: float, reason: str = "sw_power_cap") -> list[GpuSummary]:
        return [replace(summary(), clock_event_reasons={reason: share})]

    assert seen(with_share(0.25), with_share(0.375))
    assert seen(with_share(0.25), with_share(0.3125)) == []
    assert seen([summary()], with_share(0.9, "gpu_idle")) == []
    # In one run of two, and in none of the other.
    once = with_share(0.75) + with_share(1.0, "gpu_idle")
    ((_, _, now, usual, _),) = seen(with_share(0.25), once)
    assert (now, usual) == (0.375, 0.25)


def test_a_new_device_is_set_beside_the_baselines_else_beside_the_others_of_now() -> None:
    slow, fast = summary("B", sm_clock_mean_mhz=900), summary("A", sm_clock_mean_mhz=1000)
    slower = ("B", "sm_clock_mean_mhz", 900, 1000)
    assert seen([fast], [slow]) == [(*slower, ComparedWith.BASELINE)]
    assert seen([], [slow, fast]) == [(*slower, ComparedWith.OTHER_GPUS)]
    assert seen([], [slow]) == []
    narrow = summary("B", pcie_width=8, pcie_max_width=16)
    assert seen([], [narrow]) == [("B", "pcie_width", 8, 16, ComparedWith.MOST)]


def test_clocks_explain_a_slowdown_where_those_of_the_median_device_make_half_of_it() -> None:
    def clock(uuid: str, now: float) -> DeviceSymptom:
        kind, name = CauseKind.CLOCKS, "sm_clock_mean_mhz"
        return DeviceSymptom(kind=kind, uuid=uuid, host=None, counter=name, now=now, usual=1000)

    def explains(clocks: list[DeviceSymptom], uuids: str, slowdown: float) -> bool:
        found = explaining_clocks(clocks, uuids, lost_s=2 * slowdown, of_s=2.0)
        assert found in ((), tuple(clocks))
        return found != ()

    half = [clock("A", 800)]  # computing takes 25% longer
    assert explains(half, "A", 0.5)
    assert not explains(half, "A", 0.51)
    assert not explains(half, "B", 0.1)
    assert explaining_clocks(half, "A", lost_s=0.1, of_s=0.0) == ()
    assert explaining_clocks(half, "A", lost_s=0.25, of_s=0.5) != ()
    # A lower limit of the power slows nothing unless the clock falls too.
    limit = replace(half[0], counter="power_limit_w", now=150, usual=300)
    assert not explains([limit], "A", 0.1)
    # Of three devices one is slow: the median device is not.
    assert not explains(half, "ABC", 0.1)
    # Of two, half of what the slow one lost.
    assert explains(half, "AB", 0.25)
    assert not explains(half, "AB", 0.26)
    two = [*half, clock("B", 500)]
    assert explains(two, "ABC", 0.5)
    assert not explains(two, "ABC", 0.51)


def point(
    gpus: int, lost_s: float | None, *, time_s: float = 9.0, noise_s: float = 0.1, nodes: int = 1
) -> PointEvidence:
    """Steps on this number of GPUs, with a loss in communication."""
    part = Part.COMMUNICATION
    lost = lost_s or 0.0
    change = PartChange(
        part=part, before_s=1.0, after_s=1.0 + lost, lost_s=lost, noise_s=noise_s, share=1.0
    )
    return PointEvidence(
        key=PointKey.of(run(gpus, 9.0)),
        before=(replace(paced(1.0), time_s=time_s),),
        after=(step(*(rank(n, 1.0, host=f"node{n % nodes}") for n in range(gpus))),),
        changes={} if lost_s is None else {part: change},
    )


def test_the_same_loss_elsewhere_is_a_quarter_of_it_at_least_and_beyond_its_noise() -> None:
    own = point(4, 1.0, nodes=2)
    on_2_and_3 = (point(2, 0.0), point(3, 0.0, nodes=2))
    for others, lost_on, spared_on, spared_nodes in (
        ((point(2, 0.25),), (2, 4), (), None),
        ((point(2, 0.24),), (4,), (2,), 1),
        ((point(2, 0.24, time_s=8.0),), (2, 4), (), None),
        ((point(2, 0.9, noise_s=0.9),), (4,), (), None),
        ((point(2, 1.0), point(8, 0.0)), (2, 4), (8,), None),
        ((point(2, 1.0), point(3, 0.0)), (2, 4), (3,), None),
        ((*on_2_and_3, point(8, 1.0)), (4, 8), (2, 3), 2),
    ):
        nodes = 2 if lost_on[0] == 4 else 1
        points = {each.key.gpus: each for each in (*others, own)}
        assert onset_of(Part.COMMUNICATION, own, points) == Onset(
            lost_on=lost_on, spared_on=spared_on, nodes=nodes, spared_nodes=spared_nodes
        )


def test_without_another_number_of_gpus_nothing_is_known_of_where_a_loss_begins() -> None:
    own = point(4, 1.0, nodes=2)
    assert onset_of(Part.COMMUNICATION, own, {4: own}) is None
    assert onset_of(Part.COMMUNICATION, own, {2: point(2, None), 4: own}) is None
