import time
import warnings

import pytest
import torch
from command_line import python
from statements import known

from gpuscale.workload.step_log_formats import FORMATS, Mark
from gpuscale.workload.step_report import ASKED_BY, report

read = FORMATS["gpuscale"].read


@pytest.fixture(autouse=True)
def _asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASKED_BY, "1")
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)


def marks(printed: str) -> list[Mark]:
    found = [read(line) for line in printed.splitlines()]
    assert None not in found
    return [mark for mark in found if mark is not None]


def test_a_loop_is_told_with_its_epochs_samples_and_loss(capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        with report(samples=640) as step_done:
            for _ in range(3):
                step_done(0.5)
    first, *_, last = marks(capfd.readouterr().out)
    assert (first.step, first.samples_per_step, first.loss) == (1, 640, 0.5)
    assert last.step == 3
    assert last.epoch == known(first.epoch) + 1


def test_quick_steps_print_few_lines(capfd: pytest.CaptureFixture[str]) -> None:
    waits = []
    began_s = time.perf_counter()
    with report(synchronize=lambda: waits.append(1)) as step_done:
        for _ in range(200_000):
            step_done()
    passed_s = time.perf_counter() - began_s
    told = marks(capfd.readouterr().out)
    assert len(told) == len(waits) <= 20 * passed_s + 2
    assert told[-1].step == 200_000


def test_the_loss_of_a_step_may_be_a_tensor(capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(), report() as step_done:
        warnings.simplefilter("error")
        step_done(torch.tensor(0.5, requires_grad=True))
    assert marks(capfd.readouterr().out)[0].loss == 0.5


def test_other_ranks_and_loops_that_nobody_measures_print_nothing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(rank: int | None = None) -> None:
        with report(rank=rank) as step_done:
            step_done(object())  # type: ignore[arg-type]  # nothing looks at the loss

    monkeypatch.setenv("RANK", "1")
    train()
    monkeypatch.delenv("RANK")
    train(rank=3)
    monkeypatch.delenv(ASKED_BY)
    train()
    assert capfd.readouterr().out == ""


def test_lines_come_at_once_through_a_pipe_and_importing_report_is_light() -> None:
    code = (
        "import os, sys; from gpuscale import report\n"
        "with report(64) as step_done:\n"
        "    print('buffered', end='')\n"
        "    step_done()\n"
        "    heavy = {'torch', 'numpy', 'msgspec', 'pytest'} & set(sys.modules)\n"
        "    os.write(1, f'heavy: {heavy}'.encode())\n"
        "    os._exit(0)"
    )
    line, heavy = python("-c", code).stdout.splitlines()
    assert read(line) == Mark(step=1, epoch=0, samples_per_step=64)
    assert heavy == "heavy: set()"
