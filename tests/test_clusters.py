import re
from pathlib import Path

import pytest
from command_line import REPOSITORY
from msgspec.structs import fields

from gpuscale.base.errors import FileError, UsageError
from gpuscale.campaigns import cluster_profile
from gpuscale.campaigns.cluster_profile import (
    ClusterProfile,
    GpuNodes,
    JobSettings,
    Judged,
    Measured,
    find_profile,
    parse_profile,
)
from gpuscale.measure.schedulers import SCHEDULERS
from gpuscale.store.files import decode_content

PAGE = (REPOSITORY / "docs/clusters.md").read_text("utf-8")
SHIPPED = ("arc4", "cte-power", "generic-pbs", "generic-slurm", "juwels-booster", "lumi", "waic")
KNOWN = " or ".join(map(repr, SCHEDULERS))
SMALLEST = """\
description = "Here"
scheduler = "slurm"

[job]
time_limit = "00:30:00"
"""


def test_the_shipped_profiles_are_those_of_the_documentation() -> None:
    folder = Path(cluster_profile.__file__).parent / "profiles"
    assert tuple(sorted(path.stem for path in folder.glob("*.toml"))) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_profile_is_documented_and_names_files_that_exist(name: str) -> None:
    profile = find_profile(name)
    assert profile.name == name
    assert f"`{name}`" in PAGE
    assert profile.description in PAGE
    assert all((REPOSITORY / case.split("::")[0]).exists() for case in profile.measure.cases)
    assert profile.judge.baseline is None or (REPOSITORY / profile.judge.baseline).is_file()


def test_the_example_of_the_documentation_is_a_profile() -> None:
    example = PAGE.split("```toml\n")[1].split("```")[0]
    profile = parse_profile(example, "mysite")
    assert profile.node.gpus is not None
    assert profile.measure.gpus
    assert profile.job.partition is not None


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("a = [", "is not TOML"),
        (SMALLEST.replace("time_limit", "timelimit"), "here.toml: job.timelimit: unknown field"),
        (SMALLEST.replace("00:30:00", "1h"), "job.time_limit: expected a time such as 01:00:00"),
        (SMALLEST.replace('"slurm"', '"cron"'), f"scheduler: expected {KNOWN}, found"),
        (SMALLEST.replace("[job]", "[work]"), "here.toml: work: unknown field"),
        (f"{SMALLEST}[node]\ngpus = 0\n", "here.toml: node.gpus: "),
        (SMALLEST.replace('"slurm"', '"sge"'), "job: missing field 'gpu_option': the option"),
        ('scheduler = "slurm"\n', "here.toml: "),
        (f'name = "x"\n{SMALLEST}', "here.toml: name: unknown field"),
        (f'{SMALLEST}options = [" -a"]\n', "here.toml: job.options[0]: expected printable text"),
    ],
)
def test_a_mistake_is_named_by_file_and_field(broken: str, message: str) -> None:
    with pytest.raises(FileError) as raised:
        decode_content(Path("here.toml"), broken.encode(), lambda its: parse_profile(its, "here"))
    problem = str(raised.value)
    assert message in problem
    assert problem.startswith("here.toml")
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("here.toml", b"\xff\xfe", "byte 1: is not UTF-8 text"),
        ("my site.toml", SMALLEST.encode(), r"such as mysite\.toml"),
        ("none.toml", None, "No such file or directory"),
        (".", None, "is a folder"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_in_one_line(
    tmp_path: Path, name: str, content: bytes | None, problem: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FileError, match=problem) as raised:
        find_profile(str(path))
    assert "\n" not in str(raised.value)


def test_a_profile_must_be_named_and_exist() -> None:
    with pytest.raises(UsageError, match="there is no cluster profile ''; choose from arc4"):
        find_profile(None)
    with pytest.raises(UsageError, match="there is no cluster profile 'here'; choose from arc4"):
        find_profile("here")


def test_the_page_has_the_schedulers_as_the_registry_has_them() -> None:
    rows = re.findall(r"^\| `\w+` \(.*\|$", PAGE, re.MULTILINE)
    assert rows == [
        f"| `{one.name}` ({one.title}) | `{one.submit_command[0]}` "
        f"| {f'`{one.default_gpu_option}`' if one.default_gpu_option else 'the profile must say'} "
        f"| {f'`--launcher {one.launcher}`' if one.launcher else 'within one node only'} |"
        for one in SCHEDULERS.values()
    ]


def test_every_field_of_a_profile_is_in_the_documentation() -> None:
    table = PAGE.split("## What a profile holds")[1].split("\n## ")[0]
    rows = re.findall(r"^- (?:\*\*)?`\[?(\w+)\]?`", table, re.MULTILINE)
    parts = (JobSettings, Judged, Measured, GpuNodes, ClusterProfile)
    known = [part.name for kind in parts for part in fields(kind) if part.name != "name"]
    assert sorted(rows) == sorted(known)
