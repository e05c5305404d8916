"""One environment is made of the descriptions of the nodes of a job."""

from pathlib import Path

import pytest
from builders import environment
from changing import replace
from test_options import GIVEN

from gpuscale.base.errors import MachineError, UsageError
from gpuscale.measure.launch.collect import job_environment, joined
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.measure.schedulers.placement import place
from gpuscale.plugin.items import ItemPlan
from gpuscale.plugin.options import parse_options
from gpuscale.plugin.requests import run_request, skip_reason
from gpuscale.records import Environment, GpuDevice
from gpuscale.workload.cases import TrainingCase


def node(host: str, gpus: int = 4, model: str = "A100") -> Environment:
    devices = tuple(GpuDevice(index=n, name=model, uuid=f"{host}-{n}") for n in range(gpus))
    return replace(environment(), host=host, gpus=devices, device="cuda" if gpus else "cpu")


def test_the_job_is_described_by_its_first_node_and_a_list_of_all() -> None:
    whole = joined({"n1": node("n1"), "n2": node("n2")}, "auto")
    assert (whole.host, whole.device) == ("n1", "cuda")
    assert [n.host for n in whole.nodes] == ["n1", "n2"]
    assert whole.nodes[1].gpus[3].uuid == "n2-3"
    assert (whole.node_count, whole.gpus_per_node) == (2, 4)
    assert whole.hardware_label == "2 nodes with 4× A100"
    # An uneven job has on each node what every node has.
    assert joined({"n1": node("n1", 4), "n2": node("n2", 2)}, "auto").gpus_per_node == 2


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_node_without_gpus_among_others_is_named(device: str) -> None:
    with pytest.raises(MachineError, match=r"no GPU on n2; .*--device cpu"):
        joined({"n1": node("n1"), "n2": node("n2", 0)}, device)


def test_nodes_of_different_kinds_are_named() -> None:
    with pytest.raises(UsageError, match=r"gpu names is .*A100.* on n1 and .*V100.* on n2"):
        joined({"n1": node("n1"), "n2": node("n2", model="V100")}, "auto")


@pytest.mark.parametrize(
    ("strategy", "gpus", "reason"),
    [
        ("ddp", 8, None),
        ("ddp", 9, "needs 9 GPUs; 2 nodes with 4 each found"),
        ("dp", 4, None),
        ("dp", 5, "dp drives its 5 GPUs from one process; a node has 4"),
    ],
)
def test_a_run_too_large_for_a_job_is_skipped(strategy: str, gpus: int, reason: str | None) -> None:
    job = joined({"n1": node("n1"), "n2": node("n2")}, "auto")
    plan = ItemPlan(case=TrainingCase, strategy=strategy, gpus=gpus, run=1)
    assert skip_reason(plan, job, parse_options(GIVEN)) == reason


def test_ranks_share_gpus_only_where_that_was_asked_for_and_say_so() -> None:
    class Case(TrainingCase):
        sample_shape, batch = (16,), 8

    machine = replace(node("n1", 2), device="cuda")
    plan = ItemPlan(case=Case, strategy="ddp", gpus=3, run=1)
    shared = parse_options(GIVEN | {"oversubscribe": True})
    assert skip_reason(plan, machine, parse_options(GIVEN)) == "needs 3 GPUs; 2 found"
    assert skip_reason(plan, machine, shared) is None
    request = run_request(plan, machine, shared)
    assert request.configuration.ranks_per_gpu == 2
    assert sorted(request.devices) == [0, 0, 1]
    fits = run_request(replace(plan, gpus=2), machine, shared)
    assert fits.configuration.ranks_per_gpu is None
    # One process has nobody to share with.
    assert skip_reason(replace(plan, strategy="dp"), machine, shared) is not None


def test_a_pipeline_needs_a_gpu_for_each_stage() -> None:
    machine = replace(node("n1", 2), device="cuda")
    plan = ItemPlan(case=TrainingCase, strategy="pipeline", gpus=3, run=1)
    shared = parse_options(GIVEN | {"oversubscribe": True})
    reason = "pipeline with --oversubscribe: gloo cannot send from the memory of a GPU"
    assert skip_reason(plan, machine, shared) == reason
    assert skip_reason(replace(plan, gpus=2), machine, shared) is None


def test_devices_of_a_run_across_nodes_are_by_local_rank() -> None:
    job = joined({"n1": node("n1"), "n2": node("n2")}, "auto")
    assert job.devices_of_run(run=2, gpus=2) == (2, 3)
    assert job.devices_of_run(run=2, gpus=8) == (0, 1, 2, 3, 0, 1, 2, 3)
    # Three on each of the two nodes.
    assert job.devices_of_run(run=2, gpus=6)[:3] == (3, 0, 1)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("nodes", range(1, 7))
def test_single_gpus_are_each_met_once_in_as_many_runs_as_there_are(nodes: int, count: int) -> None:
    hosts = [f"n{number}" for number in range(nodes)]
    job = joined({host: node(host, count) for host in hosts}, "auto")
    met = []
    for run in range(1, 2 * nodes * count + 1):
        (device,) = job.devices_of_run(run=run, gpus=1)
        (host,) = place(1, hosts, slots=count, first=run - 1).hosts
        met.append((host, device))
    assert len(set(met[: nodes * count])) == nodes * count
    assert met[nodes * count :] == met[: nodes * count]


def test_a_node_whose_gpus_cannot_be_used_is_named_with_what_to_mend(tmp_path: Path) -> None:
    directory = RunDirectory(path=tmp_path)
    directory.environment("n1").write(node("n1"))
    directory.refusal("n2").write_text("CUDA does not start")
    with pytest.raises(MachineError, match=r"^n2: CUDA does not start$"):
        job_environment(("n1", "n2"), directory, "auto", reached=("n1", "n2"), timed_out=False)


@pytest.mark.parametrize(
    ("described", "timed_out", "told"),
    [
        (["n1"], False, r"n2: does not see .*--results .*\(srun: .*task 1: Exited"),
        ([], False, r"no node could be looked at \(srun: error: n2"),
        ([], True, "n1, n2: no answer in time about its GPUs"),
    ],
)
def test_nodes_that_left_nothing_are_named_with_the_remedy(
    tmp_path: Path, described: list[str], timed_out: bool, told: str
) -> None:
    directory = RunDirectory(path=tmp_path)
    for name in described:
        directory.environment(name).write(node(name))
    directory.launcher_log.write_text("srun: error: n2: task 1: Exited with exit code 1\n")
    with pytest.raises(MachineError, match=told):
        job_environment(("n1", "n2"), directory, "auto", reached=described, timed_out=timed_out)
