"""--cpu-bind: which CPUs ranks get, what is recorded of them, and what cannot hold."""

import os
from pathlib import Path

import pytest
from builders import CNN, request
from builders.network_tree import write
from changing import replace
from hosts import ended
from measuring import pytest_command, run_pytest, write_case
from slurm_cluster import slurm_cluster

from gpuscale.base.errors import DecodeError, UsageError
from gpuscale.base.host import allowed_cpus, bound_cpus, cpus_near, is_map
from gpuscale.campaigns.cluster_profile import Measured, find_profile
from gpuscale.campaigns.job_script import JobRequest, job_script
from gpuscale.plugin.options import parse_options
from gpuscale.records import Environment, NodeEvidence
from gpuscale.records.environment_diff import environment_changes, environment_text
from gpuscale.records.record import from_builtins
from gpuscale.store.results import read_results

HERE = sorted(os.sched_getaffinity(0))
FIRST, LAST = HERE[0], HERE[-1]
needs_two_cpus = pytest.mark.skipif(FIRST == LAST, reason="needs two CPUs")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (f"map_cpu:{FIRST},{LAST}", [{FIRST}, {LAST}, {FIRST}]),
        (f"map_cpu:{FIRST:#x}", [{FIRST}, {FIRST}, {FIRST}]),
        (f"MASK_CPU:{1 << FIRST:x},{1 << LAST:#x}", [{FIRST}, {LAST}, {FIRST}]),
        (f"mask_cpu:{1 << FIRST | 1 << LAST:x}", [{FIRST, LAST}] * 3),
        ("site", [set(), set(), set()]),
        ("none", [set(), set(), set()]),
    ],
)
def test_a_map_has_the_cpus_of_each_place_as_for_srun(given: str, expected: list[set[int]]) -> None:
    assert parse_options({"cpu_bind": given}).cpu_bind == given
    assert [bound_cpus(given, (place,)) for place in range(3)] == expected


@pytest.mark.parametrize(
    "wrong", ["cores", "map_cpu:", "map_cpu:1,,2", "mask_cpu:0", "mask_cpu:0xg", "map_cpu:-1", ""]
)
def test_what_is_no_map_is_refused_by_option_and_profile(wrong: str) -> None:
    assert not is_map(wrong)
    if wrong:
        with pytest.raises(UsageError, match=r"no .*; choose from none, site"):
            parse_options({"cpu_bind": wrong})
    with pytest.raises(DecodeError, match="cpu_bind"):
        from_builtins(Measured, {"cpu_bind": wrong})


def test_cpus_outside_of_the_job_are_refused_in_one_line() -> None:
    absent = LAST + 7
    said = f"CPU {absent} is not one of the job's on this node"
    with pytest.raises(UsageError, match=said) as why:
        bound_cpus(f"map_cpu:{absent}", (0,))
    assert allowed_cpus("self") in str(why.value)
    # A rank whose own CPUs are there can run.
    assert bound_cpus(f"map_cpu:{FIRST},{absent}", (0,)) == {FIRST}


@needs_two_cpus
def test_a_rank_gets_the_cpus_of_its_gpus_whichever_it_has() -> None:
    binding = f"map_cpu:{FIRST},{LAST}"
    second = replace(request(gpus=1, devices=(1,)), cpu_bind=binding)
    assert second.cpus_of(0) == {LAST}
    two = replace(second, gpus=2, devices=(1, 0))
    assert [two.cpus_of(0), two.cpus_of(1)] == [{LAST}, {FIRST}]
    both = replace(two, configuration=replace(CNN, strategy="dp"))
    assert both.cpus_of(0) == {FIRST, LAST}
    on_cpu = replace(two, devices=())
    assert [on_cpu.cpus_of(0), on_cpu.cpus_of(1)] == [{FIRST}, {LAST}]


def test_a_keeper_prefers_the_cores_near_the_gpus_of_a_run(tmp_path: Path) -> None:
    nodes = "sys/devices/system/node"
    write(tmp_path, (f"{nodes}/node0/cpulist", "0-3,8-11"), (f"{nodes}/node1/cpulist", "4-7,12-15"))
    cores = range(16)
    assert cpus_near((), cores, 3, tmp_path) == {0, 1, 2}
    assert cpus_near((1,), cores, 3, tmp_path) == {4, 5, 6}
    assert cpus_near((1, 0), cores, 4, tmp_path) == {0, 1, 4, 5}
    assert cpus_near((None, 1), cores, 4, tmp_path) == {0, 1, 4, 5}
    # Of those that the keeper has; the rest is from elsewhere.
    assert cpus_near((1, 1), (0, 1, 2, 7, 12), 4, tmp_path) == {0, 1, 7, 12}
    assert cpus_near((1,), cores, 99, tmp_path) == {*cores}
    assert cpus_near((1,), cores, 3, tmp_path / "nothing") == {0, 1, 2}


@needs_two_cpus
def test_ranks_on_one_node_run_on_the_cpus_of_a_map(tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny")
    binding = f"map_cpu:{LAST},{FIRST}"
    options = ("--device", "cpu", "--gpus", "1,2", "--runs", "1", "--run-seconds", "0.1")
    session = run_pytest(tmp_path, *options, "--cpu-bind", binding).ended()
    results = session.results
    assert results.environment.cpu_bind == binding
    assert [run.nodes[0].cpus for run in results.runs] == [(str(LAST),), (str(LAST), str(FIRST))]


def test_changed_cpus_and_another_binding_are_named() -> None:
    before, after = (
        [NodeEvidence(host=host, cpus=("0-15",)), NodeEvidence(host="n2", cpus=cpus)]
        for host, cpus in (("n1", ("0-15",)), ("n1", ("0-7", "8-15")))
    )
    here = Environment(device="cpu", cpu_bind="none")
    changed = environment_changes([here], [replace(here, cpu_bind="site")], before, after)
    cpus = "CPUs of ranks 0-15 → 0-7 | 8-15 on n2"
    assert [*map(environment_text, changed)] == ["CPU binding none → site", cpus]


def test_a_profile_hands_its_binding_to_pytest() -> None:
    masks = "mask_cpu:fe,fe00"
    profile = find_profile("juwels-booster")
    for binding in (masks, None):
        measure = replace(profile.measure, cpu_bind=binding, gpus=(1,))
        script = job_script(JobRequest(profile=replace(profile, measure=measure)))
        assert (f"--cpu-bind {masks}" in script) == ("--cpu-bind" in script) == (binding == masks)


@pytest.mark.scheduler
def test_ranks_are_bound_as_the_site_binds_tasks_or_by_a_map(tmp_path: Path) -> None:
    case = write_case(tmp_path, "Case = Tiny")
    allocate = ("salloc", "--quiet", "--nodes=1", "--exclusive")
    options = ("--gpus", "2", "--runs", "1", "--launcher", "slurm", "--device", "cpu")
    found = {}
    with slurm_cluster({"n1": "CPUs=2"}, task_plugin="task/affinity") as cluster:
        for binding in ("site", "map_cpu:1,0"):
            file = tmp_path / f"{binding[:4]}.jsonl"
            own = ("--cpu-bind", binding, "--results", str(file))
            session = pytest_command(str(case), *options, *own)
            ended(cluster.run(*allocate, *session, folder=tmp_path))
            found[binding] = [run.nodes[0].cpus for run in read_results(file).runs]
    assert found == {"site": [("0", "1")], "map_cpu:1,0": [("1", "0")]}
