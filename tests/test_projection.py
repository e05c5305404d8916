"""Projections beside what is known: machines made by a law, and curves that were measured."""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from builders import BATCH, CNN, phased_run, phases, run
from changing import replace
from statements import known

from gpuscale.analysis.projection import NotProjected, Projection, projections
from gpuscale.analysis.scaling import scaling_points
from gpuscale.records import Run
from gpuscale.records.configuration import ScalingMode
from gpuscale.store import read_baseline

WHOLE_BATCH = 4096
NUMBERS = ((1, 2, 4), (1, 2, 4, 8), (1, 4, 8, 16), (1, 2, 4, 8, 16))
# A step over the ideal one, by the number of GPUs and a size of the loss.
Law = Callable[[int, float], float]
WEAK: Mapping[str, Law] = {
    "power law": lambda n, loss: n**loss,
    "ring": lambda n, loss: 1 + loss * (n - 1) / n,
    "ring whose hops count": lambda n, loss: 1 + loss * (n - 1) / n + loss / 40 * (n - 1),
    "logarithm": lambda n, loss: 1 + loss / 3 * (n.bit_length() - 1),
    "Amdahl": lambda n, loss: 1 + loss / 15 * (n - 1),
    "slower links between nodes of 4": lambda n, loss: (
        1 + loss * (n - 1) / n + (loss * (1 - 4 / n) if n > 4 else 0)
    ),
}
STRONG: Mapping[str, Law] = {
    "power law": WEAK["power law"],
    "Amdahl": WEAK["Amdahl"],
    "ring of seconds": lambda n, loss: 1 + loss / 10 * (n - 1),
}
BOTH = [("weak", name, law) for name, law in WEAK.items()]
BOTH += [("strong", name, law) for name, law in STRONG.items()]


def curve(
    over_ideal: Mapping[int, float], scaling: ScalingMode = "weak", *, one_s: float = 0.1
) -> list[Run]:
    """A run on each number of GPUs, with a step time relative to the ideal one."""
    configuration = replace(CNN, scaling=scaling)
    if scaling == "weak":
        return [run(n, one_s * x, configuration=configuration) for n, x in over_ideal.items()]
    return [
        run(n, one_s * x / n, configuration=configuration, batch_per_gpu=WHOLE_BATCH // n)
        for n, x in over_ideal.items()
    ]


def projected(runs: Sequence[Run], *gpus: int) -> Projection:
    (found,) = projections(runs, gpus)
    assert isinstance(found, Projection)
    return found


def refusal(runs: Sequence[Run], *gpus: int) -> str:
    (found,) = projections(runs, gpus)
    assert isinstance(found, NotProjected)
    return found.reason


@pytest.mark.parametrize(
    ("scaling", "law"), [each[::2] for each in BOTH], ids=[" ".join(each[:2]) for each in BOTH]
)
@pytest.mark.parametrize("noise", [0.001, 0.02])
def test_a_band_holds_the_truth(scaling: ScalingMode, law: Law, noise: float) -> None:
    chance = random.Random(f"{scaling} {noise}")
    inside, made = {1: 0, 2: 0, 3: 0}, 40
    for _ in range(made):
        loss = 0.01 * 20 ** chance.random()
        numbers = chance.choice(NUMBERS)
        runs = curve({n: law(n, loss) * (1 + chance.gauss(0, noise)) for n in numbers}, scaling)
        for point in projected(runs, *(numbers[-1] * 2**ahead for ahead in inside)).points:
            truth = 1 / law(point.gpus, loss)
            efficiency = known(point.efficiency)
            assert efficiency.low is not None
            assert efficiency.high is not None
            ahead = (point.gpus // numbers[-1]).bit_length() - 1
            inside[ahead] += efficiency.low <= truth <= efficiency.high
    assert all(count >= 0.85 * made for count in inside.values()), inside
    assert sum(inside.values()) >= 0.9 * 3 * made


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_a_machine_without_losses_is_projected_as_one(scaling: ScalingMode) -> None:
    found = projected(curve(dict.fromkeys((1, 2, 4), 1.0), scaling, one_s=0.8), 8, 16)
    assert found.scaling == scaling
    assert [each.error for each in found.left_out] == pytest.approx([0])
    for point in found.points:
        assert known(point.efficiency).value == pytest.approx(1)
        assert known(point.efficiency).high == pytest.approx(1), "no better than ideal"
        assert known(point.speedup).value == pytest.approx(point.gpus)
        share, batch = (1, BATCH) if scaling == "weak" else (point.gpus, WHOLE_BATCH // point.gpus)
        assert point.batch_per_gpu == batch
        assert known(point.step_time_s).value == pytest.approx(0.8 / share)
        assert known(point.samples_per_s).value == pytest.approx(point.gpus * batch * share / 0.8)


def test_the_error_is_that_of_projecting_the_last_number_from_those_before() -> None:
    truth = {1: 1.0, 2: 1.08, 4: 1.13, 8: 1.19}
    found = projected(curve(truth), 16)
    assert [(each.gpus, each.fitted) for each in found.left_out] == [(4, (1, 2)), (8, (1, 2, 4))]
    (before,) = projected(curve({n: x for n, x in truth.items() if n < 8}), 8).points
    assert found.left_out[1].error == pytest.approx(known(before.step_time_s).value / 0.119 - 1)


def test_a_band_is_the_wider_the_more_the_method_erred_and_the_further_ahead() -> None:
    def width(eight: float, gpus: int) -> float:
        (point,) = projected(curve({1: 1.0, 2: 1.05, 4: 1.1, 8: eight}), gpus).points
        time = known(point.step_time_s)
        return known(time.high) / time.value

    assert width(1.15, 16) < width(1.4, 16)
    assert width(1.15, 16) < width(1.15, 32) < width(1.15, 64)


def test_a_band_is_never_narrower_than_the_interval_of_the_largest_number() -> None:
    noisy = {1: [0.1, 0.1], 2: [0.105, 0.105], 4: [0.1, 0.12]}
    runs = [replace(run(n, t), index=i) for n, its in noisy.items() for i, t in enumerate(its, 1)]
    measured = scaling_points(runs)[-1].efficiency
    (point,) = projected(runs, 8).points
    last, next_one = known(measured), known(point.efficiency)
    assert known(next_one.low) / next_one.value < known(last.low) / last.value


def test_exposed_communication_and_skew_are_projected_apart_where_they_were_measured() -> None:
    own = phases(forward_s=0.06, backward_s=0.04)

    def made(gpus: int) -> Run:
        slow = [replace(own, data_s=0.01)] if gpus > 1 else []
        ring_s = 0.02 * (gpus - 1) / gpus
        ranks = [own] * (gpus - len(slow)) + slow
        return phased_run(ranks, communication_s=ring_s if gpus > 1 else 0.0)

    runs = [made(n) for n in (1, 2, 4)]
    plain = [replace(each, ranks=(), unsynced_windows=(), measured={}) for each in runs]
    plain = [replace(each, measured={"step_time_s": each.windows[0].time_s}) for each in plain]
    truth_s = 0.11 + 0.02 * 31 / 32
    told, untold = (known(projected(its, 32).points[0].step_time_s).value for its in (runs, plain))
    assert abs(told - truth_s) < abs(untold - truth_s)


@pytest.mark.parametrize(
    ("runs", "gpus", "reason"),
    [
        (curve({1: 1.0, 2: 1.1}), 8, "measured on 1, 2 only; a projection needs 3 numbers"),
        (curve({2: 1.0, 4: 1.1, 8: 1.2}), 16, "1 among them: measure with --gpus 1,2,4"),
        ([run(1, None)], 8, "no run gave a time"),
        (curve({1: 1.0, 2: 1.1, 4: 1.2}), 4, "ask for other numbers of GPUs"),
        (curve({1: 1.0, 2: 1.1, 4: 1.2}, "strong"), 48, "cannot be divided among 48 GPUs"),
        (
            [*curve({1: 1.0, 2: 1.1}), run(4, 0.1, batch_per_gpu=96)],
            8,
            "the same neither per GPU nor over all",
        ),
        ([*curve({1: 1.0, 2: 1.1, 4: 1.2}), run(4, 0.1, batch_per_gpu=64)], 8, "several batches"),
        (
            [run(n, 0.1, configuration=replace(CNN, ranks_per_gpu=2)) for n in (1, 2, 4)],
            8,
            "its ranks share a GPU",
        ),
    ],
)
def test_refused_projections_offer_help(runs: Sequence[Run], gpus: int, reason: str) -> None:
    assert reason in refusal(runs, gpus)


@pytest.mark.parametrize(
    ("name", "errors"), [("cte-power", [0.05]), ("juwels-booster", [-0.08, 0.01, 0.05, -0.19])]
)
def test_published_curves_err_as_the_page_says(name: str, errors: list[float]) -> None:
    published = read_baseline(Path(__file__).parent.parent / "baselines" / f"{name}.json").published
    times_s = {figure.gpus: figure.mean_time_s or 0.0 for figure in published}
    found = projected(curve({n: t * n / times_s[1] for n, t in times_s.items()}), 256)
    assert [each.error for each in found.left_out] == pytest.approx(errors, abs=0.006)
