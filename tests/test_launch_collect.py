"""One run is made of the reports of its ranks."""

from pathlib import Path

import pytest
from builders import phases, request, results, results_text, run
from changing import replace
from command_line import gpuscale
from commands import HERE, request_for
from statements import known

from gpuscale.measure.launch.collect import collect_run, command_software
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.records import Failure, NodeEvidence, RankReport, Run, Window
from gpuscale.records.environment import without_software
from gpuscale.records.evidence import Library, ProcessSoftware
from gpuscale.records.request import CommandOutcome, Measurement, RankOutcome, RankWindow
from gpuscale.store.results import read_results


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
    joined = collected(
        tmp_path, [outcome(rank, paces_s[rank], times_s[rank], forwards_s[rank]) for rank in (0, 1)]
    )
    assert joined.is_valid, joined.failure
    assert [window.time_s for window in joined.windows] == [max(0.2, 0.2 + h) for h in HAIRS]
    for window in joined.windows:
        assert known(window.phases).forward_s == 0.09
        # Where the other rank took longer, this one waited: in its backward pass.
        assert known(window.phases).total_s == pytest.approx(window.time_s)


def test_without_paces_the_first_ranks_phases_are_shown(tmp_path: Path) -> None:
    joined = collected(
        tmp_path, [outcome(rank, None, [0.2] * 10, 0.04 + 0.01 * rank) for rank in (0, 1)]
    )
    assert {window.phases.forward_s for window in joined.windows if window.phases} == {0.04}


def test_a_command_across_nodes_is_known_by_the_hosts_of_its_ranks(tmp_path: Path) -> None:
    directory = RunDirectory(path=tmp_path)
    hosts = ("n1", "n1", "n2", "n2")
    started = [RankReport(rank=rank, host=host) for rank, host in enumerate(hosts)]
    directory.launched.write(started)
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
