"""Differences between environments, and `gpuscale env`, which shows them."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from builders import baseline, environment, measured, results_text
from changing import replace
from command_line import gpuscale, refusal

from gpuscale.judge.compare import compare
from gpuscale.judge.compare.notes import with_environment_changes
from gpuscale.judge.sides import sides_of
from gpuscale.measure.evidence.software import VARIABLE_PREFIXES
from gpuscale.records import Environment, EnvironmentChange, GpuDevice, Node, NodeEvidence, Results
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
from gpuscale.records.evidence import Library
from gpuscale.store.files import write_baseline

HERE: Environment = environment()


def test_what_may_explain_a_loss_is_what_no_environment_before_had() -> None:
    newer = replace(HERE, torch_version="2.12", nccl_version="2.28", launcher="slurm")
    (change,) = environment_changes([HERE], [newer])
    assert change == EnvironmentChange(name="torch_version", before=("2.11",), after=("2.12",))
    assert environment_changes([HERE, newer], [newer, HERE]) == ()
    variables = {"NCCL_ALGO": "Ring", "CUDA_VISIBLE_DEVICES": "1"}
    variables |= {"TORCHINDUCTOR_CACHE_DIR": "/tmp/torchinductor_bob"}
    tuned = replace(HERE, variables=variables)
    (change,) = environment_changes([HERE], [tuned, HERE])
    assert change == EnvironmentChange(name="NCCL_ALGO", before=("not set",), after=("Ring",))
    assert environment_changes([], [tuned]) == environment_changes([HERE], []) == ()
    before = replace(HERE, scripts={"train.py": "0a1b"})
    after = replace(HERE, scripts={"train.py": "2c3d", "new.py": "9f"})
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


def test_a_change_shows_its_first_values() -> None:
    def text(name: str, before: str, after: str, host: str | None = None) -> str:
        change = EnvironmentChange(name=name, before=tuple(before), after=tuple(after), host=host)
        return environment_text(change)

    assert text("cpu_count", "8", "4") == "CPU cores 8 → 4"
    assert text("NCCL_ALGO", "a", "b") == "NCCL_ALGO a → b"
    assert text("host", "abcd", "efghi") == "host a, b, c, d → e, f, g, h and 1 more"
    assert text("GPU", "", "A", "node1") == "GPU A of node1 is new"


def test_a_value_that_only_some_nodes_have_is_said_with_those_nodes() -> None:
    well = {"governor": "performance"}
    before = [(host, well) for host in ("n1", "n2", "n3")]

    def said(**now: str) -> list[str]:
        after = [(host, {"governor": value} if value else {}) for host, value in now.items()]
        return [*map(environment_text, node_changes(before, after))]

    assert said(n1="performance", n9="performance") == []
    assert said(n1="powersave", n2="powersave") == ["governor performance → powersave"]
    assert said(n1="performance", n3="powersave") == ["governor performance → powersave on n3"]
    several = said(n1="performance", n2="powersave", n3="powersave", n4="")
    assert several == ["governor performance → powersave on 2 of 3 nodes"]
    changes = [f"governor performance → {now}" for now in ("ondemand on n2", "powersave on n1")]
    assert said(n1="powersave", n2="ondemand") == changes
    assert said(n1="") == []
    assert [*node_changes([("n1", {})], before)] == []


OTHERS = {f"p{number}": "1" for number in range(17)}


def library(version: str | None = "2.28.3", file: str = "libnccl.so.2") -> Library:
    return Library(name="NCCL", path=f"/opt/{file}", version=version)


def node(host: str, *libraries: Library) -> NodeEvidence:
    return NodeEvidence(host=host, libraries=libraries)


def of(version: str, loaded: Library, *, torch: str = "2.14", **packages: str) -> Results:
    """Results with these versions of NCCL, all other packages and torch."""
    found = measured({1: [0.1], 2: [0.1]})
    runs = [replace(run, nodes=(node("n1", loaded),)) for run in found.runs]
    others = dict.fromkeys(OTHERS, version)
    packages = {"torch": torch, **others, **packages}
    where = replace(environment(), torch_version=torch, nccl_version="2.27.7", packages=packages)
    return replace(found, environment=where, runs=tuple(runs))


OLD = of("1", library("2.27.7"), triton="3.5", six="1")
NEW = of("2", library(), torch="2.15", triton="3.6", six="1")


def file_of(path: Path, content: Results) -> Path:
    path.write_text(results_text(content))
    return path


def env(*arguments: object) -> str:
    answer = gpuscale("env", *map(str, arguments))
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return file_of(tmp_path / "old.jsonl", OLD), file_of(tmp_path / "new.jsonl", NEW)


def test_what_matters_comes_first(files: tuple[Path, Path]) -> None:
    lines = env("diff", *files).splitlines()
    stack = ["torch 2.14 → 2.15", "NCCL loaded 2.27.7 → 2.28.3", "triton 3.5 → 3.6"]
    assert lines[:4] == [*stack, "p0 1 → 2"]
    assert len(lines) == 20
    alike = "no difference in what is recorded (not all environment variables: docs/format.md)\n"
    assert env("diff", files[0], files[0]) == alike


def test_a_library_that_torch_is_not_built_with_has_both_versions(files: tuple[Path, Path]) -> None:
    swapped = "NCCL 2.28.3 (loaded from /opt/libnccl.so.2; torch was built with 2.27.7)"
    assert swapped in env(files[1])
    assert "NCCL 2.27.7 (loaded from /opt/libnccl.so.2)" in env(files[0])
    assert "package triton 3.5\npackage p0 1\n" in env(files[0])
    assert "package six 1" in env(files[0])


def test_baselines_and_folders_have_software_too(files: tuple[Path, Path], tmp_path: Path) -> None:
    nights = tmp_path / "nights"
    nights.mkdir()
    file_of(nights / "new.jsonl", NEW)
    recorded = tmp_path / "base.json"
    made = baseline({1: [0.1], 2: [0.1]})
    write_baseline(recorded, replace(made, environments={"then": OLD.environment}))
    assert "torch 2.14 → 2.15" in env("diff", recorded, nights)
    # Whoever reads the file finds them on one line.
    (line,) = (line for line in recorded.read_text().splitlines() if '"triton"' in line)
    assert '"packages"' in line


def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path) -> None:
    for arguments in (("diff", "a"), ("a", "b"), ("absent.jsonl",)):
        assert refusal("env", *arguments)
    absent = replace(OLD.environment, packages={}, packages_absent="process 7 cannot be read")
    path = file_of(tmp_path / "r.jsonl", replace(OLD, environment=absent))
    assert "unknown: process 7 cannot be read" in env(path)


def test_libraries_that_differ_on_some_nodes_are_named_with_them() -> None:
    def said(before: Sequence[NodeEvidence], after: Sequence[NodeEvidence]) -> list[str]:
        here = [OLD.environment]
        return [*map(environment_text, environment_changes(here, here, before, after))]

    old, new = library("2.27.7"), library()
    one, newer = [node("n1", old)], [node("n1", new)]
    found = said([*one, node("n2", old)], [*one, node("n2", new)])
    assert found == ["NCCL loaded 2.27.7 → 2.28.3 on n2"]
    plugin = Library(name="NCCL network plugin", path="/opt/libnccl-net-ofi.so")
    found = said(one, [node("n1", old, plugin)])
    assert found == ["NCCL network plugin loaded none → libnccl-net-ofi.so"]
    # The name of a file beside a version is no difference; another name beside a name is one.
    named, other = ([node("n1", library(None, f"libnccl.so.{n}"))] for n in (2, 3))
    assert said(named, newer) == said(newer, named) == []
    assert said(named, other) == ["NCCL loaded libnccl.so.2 → libnccl.so.3"]
    # Nothing is known of old results.
    assert said([node("n1")], newer) == []


def test_packages_are_counted_beside_a_loss_only() -> None:
    before = baseline({1: [0.1] * 6, 2: [0.1] * 6})
    before = replace(before, environments={"then": OLD.environment})
    for step_s, are_counted in ((0.2, True), (0.1, False)):
        after = measured({1: [step_s] * 6, 2: [step_s] * 6})
        after = replace(after, environment=NEW.environment)
        noted = with_environment_changes(compare(before, [after]), sides_of(before, [after]))
        assert ("packages_changed" in {note.code for note in noted.notes}) is are_counted


def test_the_page_lists_the_environment_variables_that_are_recorded() -> None:
    page = (Path(__file__).parent.parent / "docs" / "format.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith("- `variables`"))
    assert set(re.findall(r"`(\w+)`", line)) == {"variables", *VARIABLE_PREFIXES}
