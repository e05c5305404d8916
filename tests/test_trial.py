"""What does not fit by its shapes is told before anything is measured, and nothing else is."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from measuring import run_pytest, write_case
from torch import nn

from bench_cases.test_gpt import Gpt
from bench_cases.test_mnist_cnn import MnistCnn
from bench_cases.test_mnist_net import MnistNet
from bench_cases.test_resnet50 import Resnet50
from bench_cases.test_resnet_v2_cifar import Resnet50v2Cifar, Resnet152v2Cifar
from gpuscale import TrainingCase
from gpuscale.base.strategies import is_older
from gpuscale.measure.worker import trial

QUICK = ("--device", "cpu", "--gpus", "1", "--runs", "1", "--run-seconds", "0.1")


def made(model: nn.Module, shape: tuple[int, ...], classes: int = 10) -> TrainingCase:
    """A case with that model, whatever device it is asked for on, and a batch of 6."""

    class Made(TrainingCase):
        sample_shape, batch = shape, 6

        def model(self) -> nn.Module:
            return deepcopy(model).to(torch.empty(0).device)

        def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(output, target)

    Made.classes = classes
    case = Made()
    case.size = case.named_size(None)
    return case


class OfBatch(nn.Linear):
    """A layer that assumes a batch of this size."""

    def __init__(self, batch: int) -> None:
        super().__init__(4, 10)
        self.batch = batch

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs.reshape(self.batch, 4))


class Doubting(nn.Linear):
    """A layer that looks at a number before it computes."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        assert inputs.mean() > 0
        return super().forward(inputs)


def test_cases_that_do_not_fit_end_the_session_first(tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny", name="test_1_good.py")
    wide = "class Wide(Tiny):\n    sample_shape = (64,)\nCase = Wide"
    line = write_case(tmp_path, wide, name="test_2_wide.py").read_text().index("class Wide")
    write_case(tmp_path, "class Many(Tiny):\n    classes = 20\nCase = Many", name="test_3_many.py")
    session = run_pytest(tmp_path, *QUICK)
    assert session.exit_code == 4, session.output
    place = (tmp_path / "test_2_wide.py").read_text()[:line].count("\n") + 1
    wrong = f"ERROR: test_2_wide.py:{place}: Wide: a batch of sample_shape (64,) does not fit the"
    assert f"{wrong} model: " in session.output
    many = "Many: a batch of sample_shape (16,) with 20 classes does not fit the loss: "
    assert many in session.output
    assert "ERROR: test_1_good" not in session.output
    assert not list(tmp_path.glob(".gpuscale/results/*.jsonl"))


def test_what_a_trial_cannot_know_is_measured_as_ever(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from gpuscale.measure.launch import local\nlocal._TRIAL_S = 1.0\n"
    )
    write_case(
        tmp_path,
        """
class Case(Tiny):
    def forward(self, model, inputs):
        print("not shown")
        assert torch.distributed.get_world_size() == 1
        return model(inputs) if inputs.mean() > 0 else None
""",
        name="test_1_of_ranks.py",
    )
    write_case(
        tmp_path,
        """
import os, time
class Slow(Tiny):
    def model(self):
        if "RANK" not in os.environ:
            time.sleep(600)
        return super().model()
Case = Slow
""",
        name="test_2_slow.py",
    )
    session = run_pytest(tmp_path, *QUICK)
    assert session.exit_code == 0, session.output
    assert {run.configuration.case for run in session.results.runs if run.is_valid} == {
        "case",
        "slow",
    }
    assert "not shown" not in session.output


@pytest.mark.parametrize("size", ["smoke", "full"])
@pytest.mark.parametrize(
    "kind", [MnistCnn, MnistNet, Resnet50, Resnet50v2Cifar, Resnet152v2Cifar, Gpt]
)
def test_shipped_cases_fit(kind: type[TrainingCase], size: str) -> None:
    case = kind()
    case.size = case.named_size(size)
    assert trial.misfit(case, case.size.batch) is None


@pytest.mark.parametrize(
    ("model", "shape", "part"),
    [
        (nn.Conv2d(3, 10, 3), (1, 9, 9), "the model: "),
        (nn.Conv2d(3, 10, 3), (9,), "the model: "),
        (nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 10)), (5,), "the model: "),
        (nn.BatchNorm2d(4), (4,), "the model: "),
        pytest.param(
            nn.Linear(4, 10),
            (3, 4),
            "with 10 classes does not fit the loss: ",
            # 2.6 says nothing of it on its meta device, so the run itself does.
            marks=pytest.mark.skipif(is_older(torch.__version__, (2, 11)), reason="an older torch"),
        ),
        (nn.Sequential(nn.Flatten(0), nn.Linear(4, 10)), (4,), "the model: "),
    ],
)
def test_shapes_fail_in_the_cpus_words(model: nn.Module, shape: tuple[int, ...], part: str) -> None:
    case = made(model, shape)
    problem = trial.misfit(case, 6)
    assert problem is not None
    assert "test_trial.py:" in problem
    with pytest.raises((RuntimeError, ValueError)) as raised:
        case.loss(model(torch.zeros(2, *shape)), torch.zeros(2, dtype=torch.long))
    assert problem.endswith(part + str(raised.value).splitlines()[0].rstrip("."))


@pytest.mark.parametrize(
    ("loss", "found"), [(lambda output: output, "torch.Size([2, 10])"), (print, "NoneType")]
)
def test_a_loss_that_is_no_number_is_told(loss: Callable[[Any], Any], found: str) -> None:
    case = made(nn.Linear(4, 10), (4,))
    case.loss = lambda output, target: loss(output)  # type: ignore[method-assign]
    problem = trial.misfit(case, 6)
    assert problem is not None
    assert problem.endswith(f"does not fit the loss: it returned {found}, not one number")


@pytest.mark.parametrize(
    ("model", "shape", "classes"),
    [
        (OfBatch(6), (4,), 10),
        (OfBatch(2), (4,), 10),
        (Doubting(4, 10), (5,), 10),
        (nn.Linear(4, 100), (4,), 100),
        (nn.Linear(4, 10), (4,), 3),
        (nn.Sequential(nn.Linear(4, 10), nn.Dropout(2 / 3)), (4,), 10),
        (nn.Embedding(4, 10), (4,), 10),
    ],
)
def test_other_failures_are_silent(model: nn.Module, shape: tuple[int, ...], classes: int) -> None:
    assert trial.misfit(made(model, shape, classes), 6) is None
