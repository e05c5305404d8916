"""The shipped baselines: the published figures, and the speedups that follow from them."""

from pathlib import Path

import pytest

from gpuscale.records import Baseline, PublishedFigure
from gpuscale.store import read_baseline

FOLDER = Path(__file__).parent.parent / "baselines"
NAMES = ("arc4", "cte-power", "juwels-booster")


def shipped(name: str) -> Baseline:
    return read_baseline(FOLDER / f"{name}.json")


def figure(baseline: Baseline, gpus: int) -> PublishedFigure:
    (found,) = (figure for figure in baseline.published if figure.gpus == gpus)
    return found


def speedup(baseline: Baseline, gpus: int) -> float:
    one, many = figure(baseline, 1).mean_time_s, figure(baseline, gpus).mean_time_s
    assert one is not None
    assert many is not None
    return one / many


def test_every_shipped_baseline_is_tested_here() -> None:
    # A user's own baselines lie beside them and have no published figures.
    files = FOLDER.glob("*.json")
    assert sorted(path.stem for path in files if read_baseline(path).published) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_published_baseline_says_where_it_comes_from(name: str) -> None:
    baseline = shipped(name)
    assert baseline.source is not None
    assert baseline.source.note
    assert baseline.hardware.device == "cuda"
    assert baseline.hardware.gpus_per_node == 4
    assert {figure.strategy for figure in baseline.published} == {"ddp"}
    assert {figure.runs for figure in baseline.published} == {1}


def test_arc4_reaches_a_speedup_of_1_72_on_2_gpus() -> None:
    baseline = shipped("arc4")
    assert baseline.hardware.gpu_name == "V100"
    assert {figure.timed for figure in baseline.published} == {"training_loop"}
    assert {figure.case for figure in baseline.published} == {"mnist_cnn"}
    assert {figure.batch_per_gpu for figure in baseline.published} == {128}
    assert speedup(baseline, 2) == pytest.approx(145 / 84.5)


def test_juwels_booster_has_the_wall_clocks_of_whole_jobs() -> None:
    baseline = shipped("juwels-booster")
    assert baseline.hardware.gpu_name == "A100"
    assert {f.gpus: f.times_s for f in baseline.published} == {
        1: (342 * 60 + 11.864,),
        4: (89 * 60 + 15.923,),
        16: (24 * 60 + 48.169,),
        32: (13 * 60 + 10.722,),
        64: (6 * 60 + 56.457,),
        128: (4 * 60 + 48.313,),
    }
    assert {f.gpus: (f.batch_per_gpu, f.nodes) for f in baseline.published} == {
        1: (256, 1),
        4: (256, 1),
        16: (128, 4),
        32: (128, 8),
        64: (128, 16),
        128: (128, 32),
    }
    assert {(f.case, f.timed) for f in baseline.published} == {("resnet50", "job")}
    assert speedup(baseline, 4) / 4 == pytest.approx(0.958, abs=0.001)
    assert speedup(baseline, 128) / 128 == pytest.approx(0.556, abs=0.001)


def test_cte_power_discards_the_first_epoch() -> None:
    baseline = shipped("cte-power")
    assert baseline.hardware.gpu_name == "V100"
    assert baseline.hardware.cpu_model == "POWER9"
    assert {f.case for f in baseline.published} == {"resnet50_cifar"}
    assert {f.gpus: f.times_s for f in baseline.published} == {
        1: (49, 45, 45, 45, 45),
        2: (26, 24, 24, 24, 24),
        4: (14, 12, 12, 12, 12),
    }
    assert {f.discard_first for f in baseline.published} == {1}
    assert {f.batch_per_gpu for f in baseline.published} == {256}
    assert speedup(baseline, 2) == pytest.approx(1.875)
    assert speedup(baseline, 4) == pytest.approx(3.75)
