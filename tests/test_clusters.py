import re
from pathlib import Path

import pytest
from msgspec.structs import fields

from gpuscale.base.errors import FileError, UsageError
from gpuscale.campaigns.cluster_profile import (
    ClusterProfile,
    GpuNodes,
    JobSettings,
    Judged,
    MachineMarks,
    Measured,
)
from gpuscale.campaigns.profile_files import (
    find_profile,
    parse_profile,
    profile_files,
    read_profile,
    recognised_profile,
)
from gpuscale.measure.schedulers import SCHEDULERS
from gpuscale.store.files import decode_content

SHIPPED = ("arc4", "cte-power", "generic-pbs", "generic-slurm", "juwels-booster", "lumi", "waic")
SMALLEST = """\
description = "Here"
scheduler = "slurm"

[job]
time_limit = "00:30:00"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One in which the user has no profiles yet."""
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def own_profile(environment: dict[str, str], name: str, text: str) -> Path:
    path = Path(environment["XDG_CONFIG_HOME"]) / "gpuscale/clusters" / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def problem_of(text: str) -> str:
    with pytest.raises(FileError) as raised:
        decode_content(Path("here.toml"), text.encode(), lambda its: parse_profile(its, "here"))
    return str(raised.value)


def test_the_shipped_profiles_are_those_of_the_documentation(environment: dict[str, str]) -> None:
    assert tuple(profile_files(environment)) == SHIPPED
    page = (Path(__file__).parent.parent / "docs/clusters.md").read_text()
    for name in SHIPPED:
        assert f"`{name}`" in page
        profile = find_profile(name, environment)
        assert profile.name == name
        assert profile.description in page


def test_shipped_profiles_name_cases_and_baselines_that_exist(environment: dict[str, str]) -> None:
    root = Path(__file__).parent.parent
    for name in SHIPPED:
        profile = find_profile(name, environment)
        assert all((root / case.split("::")[0]).exists() for case in profile.measure.cases)
        if profile.judge.baseline is not None:
            assert (root / profile.judge.baseline).is_file()


def test_the_example_of_the_documentation_is_a_profile() -> None:
    page = (Path(__file__).parent.parent / "docs/clusters.md").read_text()
    example = page.split("```toml\n")[1].split("```")[0]
    profile = parse_profile(example, "mysite")
    assert profile.node.gpus is not None
    assert profile.measure.gpus
    assert profile.job.partition is not None


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("a = [", "is not TOML"),
        (
            SMALLEST.replace("time_limit", "timelimit"),
            "here.toml:5: job: unknown field 'timelimit'; did you mean 'time_limit'?",
        ),
        (
            SMALLEST.replace('"00:30:00"', '"half an hour"'),
            "here.toml:5: job.time_limit: expected a time such as 01:00:00",
        ),
        (
            SMALLEST.replace('"slurm"', '"cron"'),
            f"here.toml:2: scheduler: expected {' or '.join(map(repr, SCHEDULERS))}, found",
        ),
        (SMALLEST.replace("[job]", "[work]"), "unknown field 'work'"),
        (f"{SMALLEST}[node]\ngpus = 0\n", "here.toml:7: node.gpus: expected a whole number from 1"),
        (
            SMALLEST.replace('"slurm"', '"sge"'),
            "here.toml:4: job: missing field 'gpu_option': every SGE site",
        ),
        *(
            (
                f"{SMALLEST}container = '{command}'\n",
                "here.toml:6: job.container: expected a command that begins with a program",
            )
            for command in ("", "A=1 apptainer", 'apptainer exec "here.sif', "$(x) here.sif")
        ),
        ('scheduler = "slurm"\n', "missing field 'description'"),
        (f'name = "x"\n{SMALLEST}', "here.toml:1: name: unknown field"),
        (f'{SMALLEST}options = [" -a"]\n', "here.toml:6: job.options[0]: expected text that is"),
    ],
)
def test_a_mistake_is_named_by_file_line_and_field(broken: str, message: str) -> None:
    problem = problem_of(broken)
    assert message in problem
    assert problem.startswith("here.toml")
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("here.toml", b"\xff\xfe", "byte 1: is not UTF-8 text"),
        ("my site.toml", SMALLEST.encode(), r"such as mysite\.toml"),
        ("none.toml", None, "there is no such file"),
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
        read_profile(path)
    assert "\n" not in str(raised.value)


def test_a_users_own_profile_goes_before_a_shipped_one(environment: dict[str, str]) -> None:
    own_profile(environment, "here", SMALLEST)
    own_profile(environment, "arc4", SMALLEST.replace("Here", "our ARC4"))
    assert find_profile("here", environment).description == "Here"
    assert find_profile("arc4", environment).description == "our ARC4"
    assert list(profile_files(environment)) == sorted([*SHIPPED, "here"])


def test_a_machine_is_recognised_by_host_file_or_variable(tmp_path: Path) -> None:
    name = tmp_path / "systemname"
    name.write_text("juwelsbooster\n")
    by_file = MachineMarks(files={str(name): "juwelsbooster"})
    by_host = MachineMarks(hosts=("jwlogin*",))
    by_variable = MachineMarks(variables={"CLUSTER": "booster-*"})
    assert by_file.fits({}, "anywhere")
    assert by_host.fits({}, "jwlogin21.juwels")
    assert by_variable.fits({"CLUSTER": "booster-2"}, "anywhere")
    for known in (by_host, by_variable, MachineMarks(files={str(name): "other"}), MachineMarks()):
        assert not known.fits({"CLUSTER": "cluster"}, "login01")


def test_a_machine_recognised_by_no_or_two_profiles_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"no profile recognises this machine \(nowhere\)"):
        recognised_profile(environment, "nowhere")
    known = '[recognise]\nhosts = ["login7"]\n'
    own_profile(environment, "here", SMALLEST + known)
    assert recognised_profile(environment, "login7").name == "here"
    own_profile(environment, "there", SMALLEST + known)
    with pytest.raises(UsageError, match="here, there all recognise this machine"):
        recognised_profile(environment, "login7")


def test_the_page_has_the_schedulers_as_the_registry_has_them() -> None:
    page = (Path(__file__).parent.parent / "docs/clusters.md").read_text()
    rows = re.findall(r"^\| `\w+` \(.*\|$", page, re.MULTILINE)
    assert rows == [
        f"| `{one.name}` ({one.title}) | `{one.submit_command[0]}` "
        f"| {f'`{one.default_gpu_option}`' if one.default_gpu_option else 'the profile must say'} "
        f"| {f'`--launcher {one.launcher}`' if one.launcher else 'within one node only'} |"
        for one in SCHEDULERS.values()
    ]


def test_every_field_of_a_profile_is_in_the_documentation() -> None:
    page = (Path(__file__).parent.parent / "docs/clusters.md").read_text()
    table = page.split("## What a profile holds")[1].split("\n## ")[0]
    rows = re.findall(r"^- (?:\*\*)?`\[?(\w+)\]?`", table, re.MULTILINE)
    parts = (JobSettings, Judged, Measured, GpuNodes, MachineMarks, ClusterProfile)
    known = [part.name for kind in parts for part in fields(kind) if part.name != "name"]
    assert sorted(rows) == sorted(known)
