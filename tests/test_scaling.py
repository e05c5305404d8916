"""From runs to scaling points."""

import pytest
from builders import run
from statements import known

from gpuscale.analysis.scaling import scaling_points, unit_error_note
from gpuscale.records import EntryKey, Estimate, Statement
from gpuscale.reports.reason_words import statement_text


def test_speedup_and_efficiency_are_ratios_of_throughput() -> None:
    one, two = scaling_points([run(1, 0.10), run(2, 0.125)])
    assert known(one.samples_per_s).value == pytest.approx(1280)
    assert known(two.samples_per_s).value == pytest.approx(2048)
    assert known(two.speedup).value == pytest.approx(1.6)
    assert known(two.efficiency).value == pytest.approx(0.8)


# Strong scaling divides the batch; JUWELS had 256 per GPU on 1 GPU, 128 from 16 GPUs up.
@pytest.mark.parametrize(
    ("times_s", "gpus", "batches"), [((0.4, 0.125), 4, (128, 32)), ((1.0, 0.5), 16, (256, 128))]
)
def test_a_speedup_is_of_samples_where_the_batch_per_gpu_differs(
    times_s: tuple[float, float], gpus: int, batches: tuple[int, int]
) -> None:
    one = run(1, times_s[0], batch_per_gpu=batches[0])
    _, several = scaling_points([one, run(gpus, times_s[1], batch_per_gpu=batches[1])])
    samples = gpus * batches[1] / batches[0]
    assert known(several.speedup).value == pytest.approx(samples * times_s[0] / times_s[1])


def test_memory_is_the_largest_of_any_rank_and_utilisation_the_mean() -> None:
    (point,) = scaling_points(
        [
            run(2, 0.1, peak_memory_bytes=5000, utilization=0.9),
            run(2, 0.1, peak_memory_bytes=4000, utilization=0.7),
        ]
    )
    assert point.peak_memory_bytes == 5001
    assert point.peak_host_memory_bytes == 1001
    assert point.gpu_utilization == pytest.approx(0.8)


def test_an_efficiency_above_1_1_is_noted_as_a_unit_error_or_as_chance() -> None:
    key = EntryKey("mnist_cnn", "ddp", 2)
    note = unit_error_note(key, Estimate(value=1.23))
    assert note == Statement.of("unit_error", row=key, value=1.23)
    assert unit_error_note(key, Estimate(value=1.23, low=1.12, high=1.35)) == note
    assert unit_error_note(key, Estimate(value=1.09)) is None
    by_chance = unit_error_note(key, Estimate(value=3.05, low=0.43, high=21.85))
    assert by_chance == Statement.of("noisy_efficiency", row=key, value=3.05)
    for each in (note, by_chance):
        assert each is not None
        assert "idle" in statement_text(each, "cpu")
    assert unit_error_note(key, None) is None
