"""One run is made of the reports of its ranks, and one environment of those of its nodes."""

from pathlib import Path

import pytest
from builders import environment, phases, request, results, results_text, run, total_s
from changing import replace
from command_line import gpuscale
from commands import HERE, request_for
from statements import known
from test_options import GIVEN

from gpuscale.base.errors import MachineError, UsageError
from gpuscale.measure.launch.collect import collect_run, command_software, job_environment, joined
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.measure.schedulers.placement import place
from gpuscale.plugin.items import ItemPlan, skip_reason
from gpuscale.plugin.options import parse_options
from gpuscale.plugin.requests import run_request
from gpuscale.records import Environment, Failure, GpuDevice, NodeEvidence, Run
from gpuscale.records.environment import without_software
from gpuscale.records.evidence import Library, ProcessSoftware, Window
from gpuscale.records.request import CommandOutcome, Measurement, RankOutcome, RankWindow
from gpuscale.store.results import read_results
from gpuscale.workload.cases import TrainingCase


def outcome(rank: int, pace_s: float | None, busy_s: list[float], forward_s: float) -> RankOutcome:
    report = replace(run(2, 0.2).ranks[rank], pace_s=pace_s)
    return RankOutcome(
        report=report,
        joined_at_s=1.7e9 + 1,
        software=ProcessSoftware(host=report.host),
        measurement=Measurement(
            warmup_steps=2,
            warmup_s=0.4,
            steps_per_window=1,
            windows=tuple(
                RankWindow(
                    started_at_s=1.7e9 + 2 + number,
                    busy_s=seconds,
                    synchronized=True,
                    phases=phases(forward_s=forward_s, backward_s=seconds - forward_s),
                )
                for number, seconds in enumerate(busy_s)
            ),
        ),
    )


def collected(tmp_path: Path, outcomes: list[RankOutcome]) -> Run:
    directory = RunDirectory(path=tmp_path)
    directory.outcomes.write(outcomes)
    return collect_run(request(2), directory, None, started_at_s=1.7e9, wall_s=9.0)


# Ranks leave the last all-reduce together: which of them was busy longest is chance.
HAIRS = [0.001, -0.001, 0.002, -0.002, 0.001, -0.001, 0.002, -0.001, -0.002, 0.001]


@pytest.mark.parametrize("slow", [0, 1])
def test_phases_of_all_windows_are_those_of_the_slowest_rank(tmp_path: Path, slow: int) -> None:
    paces_s, forwards_s = [0.12, 0.12], [0.04, 0.04]
    paces_s[slow], forwards_s[slow] = 0.19, 0.09
    times_s = [[0.2 for _ in HAIRS], [0.2 + hair for hair in HAIRS]]
    outcomes = [outcome(n, paces_s[n], times_s[n], forwards_s[n]) for n in (0, 1)]
    joined = collected(tmp_path, outcomes)
    assert joined.is_valid, joined.failure
    assert [window.time_s for window in joined.windows] == [max(0.2, 0.2 + h) for h in HAIRS]
    for window in joined.windows:
        assert known(window.phases).forward_s == 0.09
        # Where the other rank took longer, this one waited: in its backward pass.
        assert total_s(known(window.phases)) == pytest.approx(window.time_s)


def test_without_paces_the_first_ranks_phases_are_shown(tmp_path: Path) -> None:
    outcomes = [outcome(rank, None, [0.2] * 10, 0.04 + 0.01 * rank) for rank in (0, 1)]
    joined = collected(tmp_path, outcomes)
    assert {window.phases.forward_s for window in joined.windows if window.phases} == {0.04}


def test_a_command_across_nodes_is_known_by_the_hosts_of_its_ranks(tmp_path: Path) -> None:
    directory = RunDirectory(path=tmp_path)
    hosts = ("n1", "n1", "n2", "n2")
    directory.launched.write([*enumerate(hosts)])
    windows = tuple(Window(started_at_s=1e9 + n, time_s=1.0, busy_s=()) for n in range(10))
    told = CommandOutcome(
        batch_per_gpu=8, warmup_steps=2, warmup_s=0.1, steps_per_window=10, windows=windows
    )
    directory.command_outcome(0).write(told)
    asked = request_for(tmp_path, "", gpus=4, nodes=2)
    made = collect_run(asked, directory, None, started_at_s=1e9, wall_s=12.0)
    path = tmp_path / "r.jsonl"
    path.write_text(results_text(results(made, where=HERE)))
    (read,) = read_results(path).runs
    assert [rank.host for rank in read.ranks] == ["n1", "n1", "n2", "n2"]
    # What needs to know how long each rank was busy does without.
    for command in ("report r.jsonl", "plot r.jsonl -o p.svg"):
        done = gpuscale(*command.split(), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    # All four on one host is another measurement.
    on_one = tuple(replace(rank, host="n1") for rank in made.ranks)
    alone = replace(made, ranks=on_one, started_at_s=9e8)
    (tmp_path / "alone.jsonl").write_text(results_text(results(alone, where=HERE)))
    compared = gpuscale("compare", "alone.jsonl", "r.jsonl", cwd=tmp_path)
    assert compared.returncode == 4
    assert "ranks per node" in compared.stdout


def test_libraries_that_could_not_be_read_are_named_on_their_node(tmp_path: Path) -> None:
    directory = RunDirectory(path=tmp_path)
    asked = request_for(tmp_path, "", gpus=2, nodes=2)
    lost = without_software("process 7 cannot be read: Permission denied")
    nccl = Library(name="NCCL", path="/opt/libnccl.so.2")
    for rank, (host, libraries) in enumerate((("n1", ()), ("n2", (nccl,)))):
        directory.node_evidence(host).write(NodeEvidence(host=host, absent={"gpus": "none"}))
        software = ProcessSoftware(host=host, libraries=libraries, software=lost)
        directory.software(rank).write(software)
    failure = Failure(kind="killed", message="rank 1 was killed")
    made = collect_run(asked, directory, failure, started_at_s=1e9, wall_s=12.0)
    nodes = {node.host: node for node in made.nodes}
    assert nodes["n1"].absent == {"gpus": "none", "libraries": lost.packages_absent}
    assert (nodes["n2"].absent, nodes["n2"].libraries) == ({"gpus": "none"}, (nccl,))
    # None of the software is gpuscale's own, whether it was recorded or not.
    assert command_software(asked, directory) == lost
    directory.software(0).path.unlink()
    unrecorded = known(command_software(asked, directory))
    assert (unrecorded.torch_version, bool(unrecorded.packages_absent)) == (None, True)
    assert command_software(request(), directory) is None


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


def test_a_torch_that_is_too_old_is_skipped_with_a_reason() -> None:
    old = replace(node("n1"), device="cuda", torch_version="2.5.1")
    plan = ItemPlan(case=TrainingCase, strategy="ddp", gpus=1, run=1)
    reason = "ddp needs torch 2.6 or newer, found 2.5.1: gpuscale supports no older one"
    assert skip_reason(plan, old, parse_options(GIVEN)) == reason


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
    pipeline = replace(plan, strategy="pipeline")
    reason = "pipeline with --oversubscribe: gloo cannot send from the memory of a GPU"
    assert skip_reason(pipeline, machine, shared) == reason
    assert skip_reason(replace(pipeline, gpus=2), machine, shared) is None


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
    for number in range(1, 2 * nodes * count + 1):
        (device,) = job.devices_of_run(run=number, gpus=1)
        (host,) = place(1, hosts, slots=count, first=number - 1).hosts
        met.append((host, device))
    assert len(set(met[: nodes * count])) == nodes * count
    assert met[nodes * count :] == met[: nodes * count]


def test_a_node_whose_gpus_cannot_be_used_is_named_with_what_to_mend(tmp_path: Path) -> None:
    directory = RunDirectory(path=tmp_path)
    directory.environment("n1").write(node("n1"))
    directory.launched.write([(0, "n1"), (1, "n2")])
    directory.refusal("n2").write_text("CUDA does not start")
    with pytest.raises(MachineError, match=r"^n2: CUDA does not start$"):
        job_environment(("n1", "n2"), directory, "auto", timed_out=False)


@pytest.mark.parametrize(
    ("described", "timed_out", "told"),
    [
        (["n1"], False, r"^n2: no answer about its GPUs \(srun: .*task 1: Exited.*--results"),
        ([], True, "^n1, n2: no answer in time about its GPUs"),
    ],
)
def test_nodes_that_left_nothing_are_named_with_the_remedy(
    tmp_path: Path, described: list[str], timed_out: bool, told: str
) -> None:
    directory = RunDirectory(path=tmp_path)
    for name in described:
        directory.environment(name).write(node(name))
    directory.launched.write([*enumerate(described)])
    directory.launcher_log.write_text("srun: error: n2: task 1: Exited with exit code 1\n")
    with pytest.raises(MachineError, match=told):
        job_environment(("n1", "n2"), directory, "auto", timed_out=timed_out)
