"""FSDP: what is sharded together, that it trains as DDP does, and how one that does not shows."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from forked_ranks import answer, answers_of
from measuring import run_pytest, write_case
from statements import known
from test_strategies import join
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from gpuscale import TrainingCase
from gpuscale.analysis.step_parts import efficiency_budgets
from gpuscale.base.strategies import STRATEGIES, is_older
from gpuscale.measure.worker.strategies.fsdp import FullyShardedStrategy, blocks_of

SHARDED = STRATEGIES["fsdp"]
needs_fsdp = pytest.mark.skipif(
    is_older(torch.__version__, SHARDED.oldest_torch), reason="an older torch"
)


class Steps:
    """A training in which each rank has its own batches, two for each step."""

    def __init__(
        self, model: nn.Module, accumulating: Callable[[], AbstractContextManager[None]], rank: int
    ) -> None:
        self.model, self.accumulating = model, accumulating
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        self.draws = torch.Generator().manual_seed(rank)

    def make(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            for context in (self.accumulating(), nullcontext()):
                with context:
                    inputs = torch.rand(4, 1, 6, 6, generator=self.draws)
                    self.model(inputs).square().mean().backward()
            self.optimizer.step()


def network() -> nn.Module:
    """Return a network with batch norm whose layers two ranks cannot shard evenly."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.ReLU())
    return nn.Sequential(first, nn.Conv2d(5, 7, 3), nn.Flatten(), nn.Linear(7 * 4, 3))


def collectives(seen: profile) -> int:
    return sum(event.count for event in seen.key_averages() if "c10d" in event.key)


def train_in_both_ways(rank: int, port: int, folder: Path) -> None:
    """Make the same steps with FSDP and with DDP; FSDP also makes steps that are undone."""
    strategy = join(rank, port, FullyShardedStrategy)
    model = strategy.wrap(network(), TrainingCase())
    sharded = Steps(model, partial(strategy.accumulating, model), rank)
    with profile(activities=[ProfilerActivity.CPU]) as synchronized:
        sharded.make(3)
    strategy.remember(sharded.model, sharded.optimizer)
    drawn = sharded.draws.get_state()
    pause = strategy.unsynchronized(sharded.model)
    with pause, profile(activities=[ProfilerActivity.CPU]) as paused:
        sharded.make(3)
    strategy.realign(sharded.model, sharded.optimizer)
    sharded.draws.set_state(drawn)
    sharded.make(3)
    whole = DistributedDataParallel(network())
    plain = Steps(whole, whole.no_sync, rank)
    plain.make(6)
    apart = 0.0
    for ours, theirs in zip(sharded.model.parameters(), plain.model.parameters(), strict=True):
        assert isinstance(ours, torch.distributed.tensor.DTensor)
        apart = max(apart, float((ours.full_tensor() - theirs).detach().abs().max()))
    answer(folder, strategy, apart, collectives(synchronized), collectives(paused))


@needs_fsdp
def test_shards_train_as_ddp_does_and_pause_all_collectives_where_they_are_told_to() -> None:
    for _, apart, synchronized, paused in answers_of(2, train_in_both_ways):
        assert apart < 1e-5
        # Of each batch two blocks gather twice, and the rest once; all of a step reduce once.
        assert synchronized == 3 * (2 * (2 * 2 + 1) + 3)
        assert paused == 0


@needs_fsdp
def test_a_run_is_measured_in_full_and_one_that_reduces_nothing_is_invalid(tmp_path: Path) -> None:
    case = """
class Healthy(Tiny):
    strategies = ("fsdp",)

    def model(self):
        return torch.nn.Sequential(
            torch.nn.Linear(16, 600), torch.nn.Dropout(0.5), torch.nn.Linear(600, 10)
        )

    def optimizer(self, model, gpus):
        return torch.optim.Adam(model.parameters())
"""
    unreduced = """
import torch.distributed as dist


def reduce_scatter_tensor(output, parts, *_):
    output.copy_(parts.view(dist.get_world_size(), -1)[dist.get_rank()])


dist.reduce_scatter_tensor = reduce_scatter_tensor


class Broken(Healthy):
    pass
"""
    write_case(tmp_path, case, "Case = Healthy", name="test_healthy.py")
    write_case(tmp_path, case, unreduced, "Case = Broken", name="test_broken.py")
    few = ("--gpus", "1,2", "--device", "cpu", "--runs", "1", "--run-seconds", "0.1")
    session = run_pytest(tmp_path, *few)
    runs = {(run.configuration.case, run.gpus): run for run in session.results.runs}
    healthy, broken = runs["healthy", 2], runs["broken", 2]
    assert healthy.is_valid, session.output
    assert len(healthy.unsynced_windows) >= 3
    (budget,) = efficiency_budgets([runs["healthy", 1], healthy])
    assert set(budget.parts) == {"communication", "data", "skew"}
    first, second = (rank.parameter_digest for rank in healthy.ranks)
    assert first != second, "these are digests of shards"
    failure = known(broken.failure)
    assert failure.kind == "invalid"
    assert "the gradients of fsdp are off by" in failure.message


class Lists(nn.Module):
    """A model with blocks in a list; the embedding shares its weight with the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(5))
        self.heads = nn.ModuleList([nn.Linear(4, 8, bias=False), nn.Linear(4, 1)])
        self.heads[0].weight = self.embedding.weight


def test_blocks_are_members_of_lists_that_are_neither_most_of_the_model_nor_shared() -> None:
    model = Lists()
    assert blocks_of(model) == [*model.blocks, model.heads[1]]
    below = nn.Sequential(model, nn.Linear(4, 1))
    assert blocks_of(below) == [*model.blocks, model.heads[1], below[1]]
    assert blocks_of(nn.Linear(4, 4)) == []


def test_an_older_torch_is_refused_and_an_unknown_version_is_tried() -> None:
    versions = ("2.8.0+cu129", "2.9.0", "2.15.0a0", "3.0", None)
    assert [is_older(version, (2, 9)) for version in versions] == [True, False, False, False, False]
