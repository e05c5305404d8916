"""The shipped baselines: the published figures, and the speedups that follow from them."""

from pathlib import Path

import pytest

from gpuscale.store.files import read_baseline

FOLDER = Path(__file__).parent.parent / "baselines"
NAMES = ("arc4", "cte-power", "juwels-booster")


def test_every_shipped_baseline_is_tested_here() -> None:
    # A user's own baselines lie beside them and have no published figures.
    files = FOLDER.glob("*.json")
    assert sorted(path.stem for path in files if read_baseline(path).published) == sorted(NAMES)


@pytest.mark.parametrize(
    ("name", "hardware", "said", "times_s", "rows", "speedups"),
    [
        (
            "arc4",
            ("V100", None),
            ("mnist_cnn", "training_loop", 0),
            {1: (145,), 2: (84.5,)},
            {1: (128, 1), 2: (128, 1)},
            {2: 145 / 84.5},
        ),
        (
            "juwels-booster",
            ("A100", None),
            ("resnet50", "job", 0),
            {
                1: (342 * 60 + 11.864,),
                4: (89 * 60 + 15.923,),
                16: (24 * 60 + 48.169,),
                32: (13 * 60 + 10.722,),
                64: (6 * 60 + 56.457,),
                128: (4 * 60 + 48.313,),
            },
            {1: (256, 1), 4: (256, 1), **{nodes * 4: (128, nodes) for nodes in (4, 8, 16, 32)}},
            {4: 0.958 * 4, 128: 0.556 * 128},
        ),
        # Its first epoch is discarded.
        (
            "cte-power",
            ("V100", "POWER9"),
            ("resnet50v2_cifar", "epoch", 1),
            {1: (49, 45, 45, 45, 45), 2: (26, 24, 24, 24, 24), 4: (14, 12, 12, 12, 12)},
            {1: (256, 1), 2: (256, 1), 4: (256, 1)},
            {2: 1.875, 4: 3.75},
        ),
    ],
)
def test_the_figures_of_a_baseline_are_those_of_its_source(
    name: str,
    hardware: tuple[str | None, ...],
    said: tuple[str, str, int],
    times_s: dict[int, tuple[float, ...]],
    rows: dict[int, tuple[int, int]],
    speedups: dict[int, float],
) -> None:
    baseline = read_baseline(FOLDER / f"{name}.json")
    figures = {figure.gpus: figure for figure in baseline.published}
    assert baseline.source is not None
    assert baseline.source.note
    measured_on = baseline.hardware
    assert (measured_on.device, measured_on.gpus_per_node) == ("cuda", 4)
    assert (measured_on.gpu_name, measured_on.cpu_model) == hardware
    assert {(f.strategy, f.runs) for f in figures.values()} == {("ddp", 1)}
    assert {(f.case, f.timed, f.discard_first) for f in figures.values()} == {said}
    assert {gpus: figure.times_s for gpus, figure in figures.items()} == times_s
    assert {gpus: (f.batch_per_gpu, f.nodes) for gpus, f in figures.items()} == rows
    means = {gpus: figure.mean_time_s or 0.0 for gpus, figure in figures.items()}
    for gpus, speedup in speedups.items():
        assert means[1] / means[gpus] == pytest.approx(speedup, rel=0.001)
