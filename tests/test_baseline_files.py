"""The shipped baselines: the published figures, and the speedups that follow from them."""

from pathlib import Path

import pytest
from statements import known

from gpuscale.store.files import read_baseline

FOLDER = Path(__file__).parent.parent / "baselines"
# Of each baseline what its source says: the GPU, the case, what the times span and how many of them
# do not count; seconds, batch per GPU and nodes by number of GPUs; and speedups.
SOURCES = {
    "arc4": (
        ("V100", "mnist_cnn", "training_loop", 0),
        {1: ((145,), 128, 1), 2: ((84.5,), 128, 1)},
        {2: 145 / 84.5},
    ),
    "juwels-booster": (
        ("A100", "resnet50", "job", 0),
        {
            1: ((342 * 60 + 11.864,), 256, 1),
            4: ((89 * 60 + 15.923,), 256, 1),
            16: ((24 * 60 + 48.169,), 128, 4),
            32: ((13 * 60 + 10.722,), 128, 8),
            64: ((6 * 60 + 56.457,), 128, 16),
            128: ((4 * 60 + 48.313,), 128, 32),
        },
        {4: 0.958 * 4, 128: 0.556 * 128},
    ),
    "cte-power": (
        ("V100", "resnet50v2_cifar", "epoch", 1),
        {
            1: ((49, 45, 45, 45, 45), 256, 1),
            2: ((26, 24, 24, 24, 24), 256, 1),
            4: ((14, 12, 12, 12, 12), 256, 1),
        },
        {2: 1.875, 4: 3.75},
    ),
}


def test_every_shipped_baseline_is_tested_here() -> None:
    # A user's own baselines lie beside them and have no published figures.
    files = FOLDER.glob("*.json")
    assert {path.stem for path in files if read_baseline(path).published} == {*SOURCES}


@pytest.mark.parametrize("name", SOURCES)
def test_the_figures_of_a_baseline_are_those_of_its_source(name: str) -> None:
    said, rows, speedups = SOURCES[name]
    baseline = read_baseline(FOLDER / f"{name}.json")
    figures = {figure.gpus: figure for figure in baseline.published}
    assert known(baseline.source).note
    measured_on = baseline.hardware
    assert (measured_on.device, measured_on.gpus_per_node) == ("cuda", 4)
    assert measured_on.cpu_model == ("POWER9" if name == "cte-power" else None)
    assert {(f.strategy, f.runs) for f in figures.values()} == {("ddp", 1)}
    for figure in figures.values():
        assert (measured_on.gpu_name, figure.case, figure.timed, figure.discard_first) == said
    assert {gpus: (f.times_s, f.batch_per_gpu, f.nodes) for gpus, f in figures.items()} == rows
    means = {gpus: figure.mean_time_s or 0.0 for gpus, figure in figures.items()}
    for gpus, speedup in speedups.items():
        assert means[1] / means[gpus] == pytest.approx(speedup, rel=0.001)
