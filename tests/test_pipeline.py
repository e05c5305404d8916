"""A pipeline trains as its micro-batches would one after another, and where its time goes."""

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from builders import CNN, cpu_environment, phases, rank_report, request, run, total_s, window
from changing import replace
from forked_ranks import answer, answers_of
from measuring import run_pytest, write_case
from statements import known
from test_strategies import take_place
from torch import nn

from gpuscale import TrainingCase
from gpuscale.analysis.step_parts import efficiency_budgets
from gpuscale.base.errors import CaseError, InvalidTrainingError, UsageError
from gpuscale.measure.worker.data import Batches, training_batches
from gpuscale.measure.worker.strategies.stages import PipelineStrategy, cut, stages_of
from gpuscale.measure.worker.training import Training
from gpuscale.plugin.items import ItemPlan
from gpuscale.plugin.options import parse_options
from gpuscale.plugin.requests import run_request, validate_micro_batches
from gpuscale.records import Run, RunRequest, with_measured
from gpuscale.records.evidence import Phases
from gpuscale.reports.show.step_parts import budget_lines, phase_lines
from gpuscale.store.results import read_results

SHAPE = (3, 8, 8)
ON_CPU = replace(CNN, case="blocks", device="cpu", size="smoke")
PIPELINE = replace(ON_CPU, strategy="pipeline", micro_batches=4)


class Blocks(TrainingCase):
    """Four blocks with parameters, two of them with statistics."""

    strategies = ("pipeline",)
    sample_shape: ClassVar[tuple[int, ...]] = SHAPE
    batch = 8

    def model(self) -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)),
            nn.ReLU(),
            nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)),
            nn.Flatten(),
            nn.Linear(128, 16),
            nn.Linear(16, self.classes),
        )

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target)

    def optimizer(self, model: nn.Module, gpus: int) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)


class Slow(torch.autograd.Function):
    """An operation that sleeps, so that its time hardly depends on the load of the machine."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02 * len(values))
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02 * len(gradient))
        return gradient


class SlowBlock(nn.Linear):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = Slow.apply(super().forward(values))
        return output


class SlowBlocks(Blocks):
    sample_shape: ClassVar[tuple[int, ...]] = (10,)

    def model(self) -> nn.Module:
        return nn.Sequential(SlowBlock(10, 10), nn.Dropout(), SlowBlock(10, 10))


def sized(case: TrainingCase) -> TrainingCase:
    case.size = case.named_size(None)
    return case


def training_of(case: TrainingCase, asked: RunRequest, strategy: PipelineStrategy) -> Training:
    return Training(sized(case), asked, strategy, batches_of(case, asked.gpus))


def request_of(case: TrainingCase, gpus: int, **fields: object) -> RunRequest:
    of_case: dict[str, Any] = {"batch_per_gpu": case.batch, "sample_shape": case.sample_shape}
    return request(gpus, configuration=replace(PIPELINE, **fields), **of_case)


def batches_of(case: TrainingCase, gpus: int) -> Batches:
    asked = request_of(case, gpus)
    return training_batches(sized(case), asked, batch=case.batch * gpus, rank=0, world_size=1)


def left_in(model: nn.Module) -> list[list[float]]:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [tensor.flatten().tolist() for tensor in (*gradients, *model.buffers())]


def train_as_rank(rank: int, port: int, folder: Path, count: int, precision: str) -> None:
    """Train on a batch, verify it, verify it again with lost gradients, and time the waits."""
    take_place(rank, port, count)
    asked = request_of(Blocks(), count, precision=precision)
    # It joins the process group.
    strategy = PipelineStrategy(asked)
    training = training_of(Blocks(), asked, strategy)
    model = training.model
    first = copy.deepcopy(model.state_dict())
    # torch 2.6 learns the shapes between stages by a forward pass of zeros.
    training.step()
    model.load_state_dict(first)
    model.zero_grad()
    batch = next(batches_of(training.case, count))
    strategy.forward_backward(training, *strategy.part_of(batch))
    left = left_in(model)
    said = [verdict(training)]
    lose_a_gradient(strategy, model)
    said.append(verdict(training))
    slow = SlowBlocks()
    idle = []
    for micro_batches in (1, 8) if count == 2 else ():
        strategy._micro_batches, strategy._schedule = micro_batches, None
        training = training_of(slow, request_of(slow, count), strategy)
        idle.append(min(idle_share(training) for _ in range(3)))
    said.append(verdict(training))
    answer(folder, strategy, left, said, idle)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute with one thread, as ranks do: several threads add in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def idle_share(training: Training) -> float:
    training.clock.begin(1)
    training.step()
    spent = training.clock.phases()
    return spent.wait_s / total_s(spent)


def verdict(training: Training) -> str:
    try:
        training.strategy.verify(training)
    except InvalidTrainingError as error:
        return str(error)
    return "trained"


def lose_a_gradient(strategy: PipelineStrategy, model: nn.Module) -> None:
    """Break the last stage: it forgets the gradients of the first micro-batch."""
    schedule = known(strategy._schedule)
    stage = schedule._stage
    whole = stage.backward_one_chunk

    def lossy(number: int, *arguments: Any, **more: Any) -> None:
        if number == 1 and stage.is_last:
            model.zero_grad()
        whole(number, *arguments, **more)

    vars(stage)["backward_one_chunk"] = lossy


@pytest.mark.parametrize(("count", "precision"), [(2, "fp32"), (3, "bf16")])
def test_a_pipeline_trains_as_batches_in_turn(count: int, precision: str, one_thread: None) -> None:
    found = answers_of(count, train_as_rank, count, precision)
    case, micro_batches = Blocks(), 4 * count
    model = case.model()
    inputs, targets = next(batches_of(case, count))
    for part, target in zip(inputs.chunk(micro_batches), targets.chunk(micro_batches), strict=True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = case.loss(model(part), target) / micro_batches
        loss.backward()
    stages = stages_of(sized(case), model, count)
    assert [left for _, left, *_ in found] == [left_in(stage) for stage in stages]
    for _, _, (healthy, broken, last), idle in found:
        assert healthy == "trained"
        assert "differ from those of the same micro-batches one after another, by 0." in broken
        # Of two ranks the last is another training, with dropout.
        assert (last == "trained") is (count == 2)
        assert sorted(idle, reverse=True) == idle


def test_stages_are_cut_so_that_the_costliest_costs_least() -> None:
    assert cut([1, 1, 1, 1], 2) == (0, 2)
    assert cut([4, 1, 1, 1, 4], 3) == (0, 1, 4)
    assert cut([1, 2, 3], 3) == (0, 1, 2)
    case = sized(Blocks())
    stages = stages_of(case, case.model(), 3)
    kinds = [[type(block).__name__ for block in stage] for stage in stages]
    # What has no parameter stays with what comes before it.
    assert kinds == [["Sequential", "ReLU"], ["Sequential", "Flatten"], ["Linear", "Linear"]]


class Whole(Blocks):
    def model(self) -> nn.Module:
        return nn.Linear(3, 3)


class Half(Whole):
    sample_shape: ClassVar[tuple[int, ...]] = (3,)

    def model(self) -> nn.Module:
        return nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        assert isinstance(model, nn.ModuleDict)
        return [model["a"]]


class Sharing(Whole):
    sample_shape: ClassVar[tuple[int, ...]] = (3,)

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return [model, model]


@pytest.mark.parametrize(
    ("case", "gpus", "told"),
    [
        (Whole(), 1, r"Whole.blocks\(model\) gives 0 blocks with parameters"),
        (Half(), 1, r"Half.blocks\(model\) leaves out b.weight"),
        (Blocks(), 5, "gives 4 blocks with parameters, and each of 5 GPUs needs one"),
        (Sharing(), 2, "blocks share a parameter"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused(case: TrainingCase, gpus: int, told: str) -> None:
    with pytest.raises(CaseError, match=told):
        stages_of(sized(case), case.model(), gpus)


@pytest.mark.parametrize(
    ("strategy", "given", "told"),
    [
        ("pipeline", {"micro_batches": "3"}, "8 samples on each GPU cannot be split"),
        ("ddp", {"micro_batches": "2"}, "--micro-batches: no item that was chosen has"),
    ],
)
def test_bad_micro_batches_are_refused(strategy: str, given: dict[str, str], told: str) -> None:
    plan = ItemPlan(case=Blocks, strategy=strategy, gpus=2, run=1)
    asked = run_request(plan, cpu_environment(), options := parse_options(given))
    with pytest.raises(UsageError, match=told):
        validate_micro_batches([asked], options)


def test_a_pipeline_is_measured_and_its_loss_is_booked(tmp_path: Path) -> None:
    case = """
class Case(Tiny):
    strategies = ("ddp", "pipeline")
    sample_shape = (256,)
    batch = 64
    scaling = "strong"

    def model(self):
        return torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)])

    def optimizer(self, model, gpus):
        # However many steps there are, it does not diverge.
        return torch.optim.SGD(model.parameters(), lr=1e-4)
"""
    write_case(tmp_path, case)
    asked = ("--strategy", "pipeline", "--runs", "1", "--run-seconds", "0.5")
    made = run_pytest(tmp_path, "--gpus", "1,2", *asked, "--micro-batches", "2").ended()
    assert "micro-batches 2" in made.output
    assert "pipeline: T(1) is the whole batch at once, without a pipeline" in made.output
    one, two = made.results.runs
    assert one.unsynced_windows
    assert not two.unsynced_windows
    assert len({rank.parameter_digest for rank in two.ranks}) == 2
    assert len({rank.final_loss for rank in two.ranks}) == 1
    (budget,) = efficiency_budgets(made.results.runs)
    names = {"micro-batching", "bubble", "imbalance", "data", "optimizer"}
    assert set(budget.parts) == names
    assert not budget.absent
    booked = sum(budget.parts.values()) + budget.rest
    assert booked == pytest.approx(1 - budget.efficiency.value, abs=0.01)
    fault = ("--inject", "slow-rank=1:4", "--results", "injected.jsonl")
    run_pytest(tmp_path, "--gpus", "2", *asked, *fault).ended()
    (slowed,) = read_results(tmp_path / "injected.jsonl").runs
    fast, slow = (known(rank.pace_s) for rank in slowed.ranks)
    assert slow > 1.5 * fast


def pipeline_run(gpus: int, own: list[Phases], *, alone_s: float | None = None) -> Run:
    """Return a run whose stages have these phases; micro-batches take `alone_s` on one GPU."""
    step_s = total_s(own[0])
    seen = replace(window(step_s, gpus), phases=own[0])
    made = run(gpus, step_s, configuration=PIPELINE)
    ranks = tuple(
        replace(rank_report(rank), phases=its, pace_s=total_s(its) - its.wait_s)
        for rank, its in enumerate(own)
    )
    unsynced = () if alone_s is None else (window(alone_s, 1),)
    return with_measured(replace(made, windows=(seen,), ranks=ranks, unsynced_windows=unsynced))


def test_the_loss_of_a_pipeline_is_booked_where_it_arose() -> None:
    one = pipeline_run(1, [phases(forward_s=0.03, backward_s=0.06, optimizer_s=0.01)], alone_s=0.12)
    first = phases(data_s=0.002, forward_s=0.05, backward_s=0.09, optimizer_s=0.008, wait_s=0.05)
    second = phases(forward_s=0.03, backward_s=0.06, optimizer_s=0.002, wait_s=0.108)
    two = pipeline_run(2, [first, second])
    (budget,) = efficiency_budgets([one, two])
    seconds = {name: part * 0.2 for name, part in budget.parts.items()}
    expected = {"micro-batching": 0.02, "bubble": 0.05, "imbalance": (0.15 - 0.092) / 2}
    assert seconds == pytest.approx({**expected, "data": 0.001, "optimizer": -0.005})
    assert budget.efficiency.value == pytest.approx(0.5)
    # 0.115 s of computing on each in the mean, where one GPU takes 0.110 s for its micro-batches.
    assert budget.rest * 0.2 == pytest.approx(0.005)
    lines = "\n".join(budget_lines([one, two, two, two]))
    assert "S 1.20 against a single device with the same micro-batches" in lines
    (lag,) = (line for line in lines.splitlines() if "imbalance: rank" in line)
    assert lag.removesuffix("; a comparison shows whether that is new").endswith(
        "rank 0 (node1, GPU-0): the slowest in 3 of 3 runs, 63.0 % behind the other"
    )
    assert "micro-batching: the extra time of micro-batches on one device" in lines
    (table, *_) = phase_lines([one, two], 200)
    assert "wait" in table
