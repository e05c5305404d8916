"""Differences between environments that may explain a loss or forbid resuming a file."""

from collections.abc import Sequence

import pytest
from builders import environment
from changing import replace

from gpuscale.records import Environment, EnvironmentChange, GpuDevice, Node
from gpuscale.records.environment_diff import (
    ENVIRONMENT_FIELDS,
    IN_SESSION,
    ON_NODES,
    EnvironmentField,
    environment_changes,
    environment_text,
    field_differences,
    node_changes,
)

HERE: Environment = environment()


def test_what_may_explain_a_loss_is_what_no_environment_before_had() -> None:
    newer = replace(HERE, torch_version="2.12", nccl_version="2.28", launcher="slurm")
    assert environment_changes([HERE], [newer]) == (
        EnvironmentChange(name="torch_version", before=("2.11",), after=("2.12",)),
    )
    assert environment_changes([HERE, newer], [newer, HERE]) == ()
    variables = {"NCCL_ALGO": "Ring", "CUDA_VISIBLE_DEVICES": "1"}
    variables |= {"TORCHINDUCTOR_CACHE_DIR": "/tmp/torchinductor_bob"}
    tuned = replace(HERE, variables=variables)
    assert environment_changes([HERE], [tuned, HERE]) == (
        EnvironmentChange(name="NCCL_ALGO", before=("not set",), after=("Ring",)),
    )
    assert environment_changes([], [tuned]) == environment_changes([HERE], []) == ()
    before, after = (
        replace(HERE, scripts={"train.py": digest, **more})
        for digest, more in (("0a1b", {}), ("2c3d", {"new.py": "9f"}))
    )
    (script,) = environment_changes([before], [after])
    assert environment_text(script) == "script train.py 0a1b → 2c3d"
    assert environment_changes([HERE], [after]) == ()
    # HERE has 3.11: a version that is known more exactly is none that differs.
    exact = replace(HERE, python_version="3.11.7")
    assert environment_changes([HERE], [exact]) == environment_changes([exact], [HERE]) == ()
    for other in ("3.1", "3.12", "3.11.9"):
        (change,) = environment_changes([exact], [replace(HERE, python_version=other)])
        assert change.after == (other,)


def test_a_gpu_that_was_replaced_on_its_host_is_a_change_and_one_of_another_host_is_not() -> None:
    def with_gpus(host: str, *uuids: str) -> Environment:
        gpus = tuple(GpuDevice(index=i, name="V100", uuid=uuid) for i, uuid in enumerate(uuids))
        return replace(HERE, host=host, gpus=gpus)

    before = [with_gpus("node1", "A", "B"), with_gpus("node2", "C")]
    (replaced,) = environment_changes(before, [with_gpus("node1", "A", "C")])
    assert (replaced.host, replaced.after) == ("node1", ("C",))
    assert environment_changes(before, [with_gpus("node3", "D")]) == ()


def test_limits_of_gpus_are_changes_where_both_sides_know_them_and_refuse_no_resumed_job() -> None:
    def limited(**limits: float) -> Environment:
        ours = replace(HERE.gpus[0], max_clock_mhz=1530, **limits)
        node = Node(host="node2", gpus=(replace(ours, power_limit_w=300),))
        return replace(HERE, gpus=(ours,), nodes=(node,))

    before, after = limited(power_limit_w=300), limited(power_limit_w=250.5)
    (lower,) = environment_changes([before], [after])
    assert environment_text(lower) == "power limit of GPUs 300 W → 250.5, 300 W"
    assert environment_changes([HERE], [after]) == environment_changes([after], [HERE]) == ()
    assert [*field_differences(before, after, IN_SESSION)] == []
    fast, slow = (limited(application_clock_mhz=clock_mhz) for clock_mhz in (1312, 1005))
    (clock,) = environment_changes([fast], [slow])
    assert environment_text(clock) == "application clock of GPUs 1312 MHz → 1005 MHz"


def test_runs_of_one_file_and_nodes_of_one_job_must_agree_also_on_what_is_not_known() -> None:
    def names(other: Environment, where: Sequence[EnvironmentField]) -> list[str]:
        return [each.name for each in field_differences(HERE, other, where)]

    other = replace(HERE, nccl_version="2.28", kernel="6.1", host="node2", launcher="slurm")
    assert names(other, IN_SESSION) == ["nccl_version", "launcher"]
    assert names(other, ON_NODES) == ["nccl_version"]
    fewer = replace(HERE, gpus=HERE.gpus[:2])
    assert names(fewer, IN_SESSION) == ["GPUs", "GPUs per node"]
    assert names(fewer, ON_NODES) == []


def test_every_field_of_an_environment_is_compared_or_left_out_on_purpose() -> None:
    # Hosts, devices and variables are compared in ways of their own; jobs never are.
    left_out = {"host", "gpus", "nodes", "variables", "scheduler", "job_id"}
    left_out |= {"packages", "packages_absent", "scripts"}
    compared = {field.name for field in ENVIRONMENT_FIELDS}
    assert compared >= {*Environment.__struct_fields__} - left_out


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (EnvironmentChange(name="cpu_count", before=("8",), after=("4",)), "CPU cores 8 → 4"),
        (EnvironmentChange(name="NCCL_ALGO", before=("a",), after=("b",)), "NCCL_ALGO a → b"),
        (
            EnvironmentChange(name="host", before=tuple("abcd"), after=tuple("efghi")),
            "host a, b, c, d → e, f, g, h and 1 more",
        ),
        (
            EnvironmentChange(name="GPU", before=(), after=("A",), host="node1"),
            "GPU A of node1 is new",
        ),
    ],
)
def test_a_change_shows_its_first_values(change: EnvironmentChange, text: str) -> None:
    assert environment_text(change) == text


def test_a_value_that_only_some_nodes_have_is_said_with_those_nodes() -> None:
    well = {"governor": "performance"}
    before = [(host, well) for host in ("n1", "n2", "n3")]

    def said(**now: str) -> list[str]:
        after = [(host, {"governor": value} if value else {}) for host, value in now.items()]
        return [*map(environment_text, node_changes(before, after))]

    assert said(n1="performance", n9="performance") == []
    assert said(n1="powersave", n2="powersave") == ["governor performance → powersave"]
    assert said(n1="performance", n3="powersave") == ["governor performance → powersave on n3"]
    assert said(n1="performance", n2="powersave", n3="powersave", n4="") == [
        "governor performance → powersave on 2 of 3 nodes"
    ]
    assert said(n1="powersave", n2="ondemand") == [
        "governor performance → ondemand on n2",
        "governor performance → powersave on n1",
    ]
    assert said(n1="") == []
    assert [*node_changes([("n1", {})], before)] == []
