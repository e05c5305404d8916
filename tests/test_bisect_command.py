"""`gpuscale bisect` on real environments: wheels with planted slowness, and a real command."""

import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args
from zipfile import ZipFile

import pytest
from builders import measured, results_text
from changing import replace
from command_line import gpuscale, refusal
from hosts import skip_unless_required
from statements import known

from gpuscale.base.errors import FileError, UsageError
from gpuscale.campaigns.bisection import kinds
from gpuscale.campaigns.bisection.commits import Commits
from gpuscale.campaigns.bisection.kinds import Variables, side_of, uv_program
from gpuscale.campaigns.bisection.packages import Packages
from gpuscale.campaigns.bisection.trials import TrialRunner
from gpuscale.records.cause import Bisection, BisectionFinding, Reason
from gpuscale.reports.campaign_text import bisection_text
from gpuscale.store.files import sole_use

NAMES = ("batcher", "codec", "gears", "lens", "mixer", "nozzle")
SCRIPT = f"""
import importlib, json, time

extra = 0.0
for name in {NAMES}:
    try:
        extra += importlib.import_module(name).DELAY_S
    except ModuleNotFoundError:
        pass
due = time.monotonic()
for number in range(100_000):
    due = max(due, time.monotonic() - 0.05) + 0.01 + extra
    time.sleep(max(0, due - time.monotonic()))
    print("GPUSCALE", json.dumps({{"step": number, "samples": 8}}), flush=True)
"""
HERE_FIRST = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
SLOW_S = 0.006
"""Delay of a step of 10 ms that one slow package adds."""


def wheel(folder: Path, name: str, version: int, code: str, *, needs: str = "") -> None:
    """A wheel of one module, which is an archive with three files of metadata."""
    about = f"{name}-{version}.dist-info"
    asked = f"Requires-Dist: {needs}\n" if needs else ""
    with ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", code)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{asked}"
        archive.writestr(f"{about}/METADATA", metadata)
        head = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{about}/WHEEL", head)
        files = (f"{name}.py", f"{about}/METADATA", f"{about}/WHEEL", f"{about}/RECORD")
        archive.writestr(f"{about}/RECORD", "".join(f"{file},,\n" for file in files))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with wheels of two versions of each package, pins of both, and a script."""
    if shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}") is None:
        skip_unless_required("needs uv (make setup)")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in NAMES:
        for version in (1, 2):
            wheel(wheels, name, version, "DELAY_S = 0.0\n")
    few(tmp_path, *NAMES)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def make_slow(site: Path, name: str, delay_s: float = SLOW_S, *, needs: str = "") -> None:
    (site / "wheels" / f"{name}-2-py3-none-any.whl").unlink()
    wheel(site / "wheels", name, 2, f"DELAY_S = {delay_s}\n", needs=needs)


def words_of(
    *more: str, good: str = "good.txt", bad: str = "bad.txt", gpus: str = "1"
) -> list[str]:
    """A bisection with the wheels of a site; without a command, of train.py."""
    short = ["--gpus", gpus, "--device", "cpu", "--run-seconds", "1"]
    command = () if "--" in more else ("--", "python", "train.py")
    return ["bisect", good, bad, *short, "--wheelhouse", "wheels", *more, *command]


def bisect(site: Path, *more: str, **sides: str) -> "subprocess.CompletedProcess[str]":
    return gpuscale(*words_of(*more, **sides), cwd=site, variables=HERE_FIRST)


def few(site: Path, *names: str) -> None:
    for side, version in (("good", 1), ("bad", 2)):
        (site / f"{side}.txt").write_text("".join(f"{name}=={version}\n" for name in names))


def environments(
    site: Path, python: str = sys.executable, *, needs_gpuscale: bool = False
) -> Packages:
    found = Packages(
        uv=uv_program(),
        python=python,
        good=side_of(site / "good.txt"),
        bad=side_of(site / "bad.txt"),
        needs_gpuscale=needs_gpuscale,
        options=("--no-index", "--find-links", str(site / "wheels")),
    )
    found.prepare(site / "environments")
    return found


def made_for(packages: Packages, *applied: int) -> Path:
    """The interpreter of a trial's environment."""
    setting = packages.setting(frozenset(applied))
    return known(setting.python)


def delays(python: Path) -> list[float | None]:
    """What the interpreter of a trial imports; None for a package that it does not have."""
    code = f"""
import importlib.util, json
names = {NAMES}
print(json.dumps([importlib.util.find_spec(n) and importlib.import_module(n).DELAY_S
                  for n in names]))
"""
    answer = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return list(json.loads(answer.stdout))


def test_an_environment_has_some_packages_of_each_side(site: Path) -> None:
    make_slow(site, "lens")
    make_slow(site, "codec")
    made = environments(site)
    assert [change.name for change in made.changes] == [*NAMES]
    assert delays(made_for(made, 3)) == [0, 0, 0, SLOW_S, 0, 0]
    assert delays(made_for(made, 1, 2)) == [0, SLOW_S, 0, 0, 0, 0]
    folder = made_for(made, 0).parents[1]
    side = side_of(folder)
    # Neither gpuscale nor pytest is a part of it.
    assert side.pins == {name: f"{name}=={1 + (name == 'batcher')}" for name in NAMES}
    assert side == side_of(folder / "bin" / "python")


def test_packages_that_only_one_side_has_come_and_go(site: Path) -> None:
    make_slow(site, "lens")
    pins = (site / "good.txt").read_text()
    (site / "good.txt").write_text(pins.replace("lens==1\n", ""))
    made = environments(site)
    (change,) = (change for change in made.changes if change.name == "lens")
    assert change.text == "lens none → 2"
    assert delays(made_for(made))[3] is None
    assert delays(made_for(made, 3))[3] == SLOW_S


def test_packages_that_pin_each_other_are_neighbours(site: Path) -> None:
    make_slow(site, "nozzle", needs="codec==2")
    make_slow(site, "mixer", needs="gears>=2")
    made = environments(site)
    names = [change.name for change in made.changes]
    assert names.index("nozzle") - names.index("codec") == 1
    assert len(set(made.groups)) == len(NAMES) - 1
    # The pin does not keep them from being tried apart.
    assert made_for(made, names.index("nozzle")).exists()


def test_two_builds_of_one_version_are_named_by_their_places(site: Path) -> None:
    other = site / "rebuilt"
    other.mkdir()
    wheel(other, "gears", 1, f"DELAY_S = {SLOW_S}\n")
    for side, folder in (("good", site / "wheels"), ("bad", other)):
        place = (folder / "gears-1-py3-none-any.whl").as_uri()
        (site / f"{side}.txt").write_text(f"gears @ {place}\n")
    (change,) = environments(site).changes
    assert (site / "wheels").as_uri() in change.text
    assert other.as_uri() in change.text


def test_an_environment_lends_gpuscale_only_what_it_needs(site: Path) -> None:
    python = made_for(environments(site, needs_gpuscale=True))
    code = "import gpuscale.records, pytest, importlib.util as u; print(u.find_spec('hypothesis'))"
    answer = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "None\n"


@pytest.mark.parametrize(
    ("more", "sides", "said"),
    [
        ((), {"bad": "good.txt"}, "same packages"),
        ((), {"bad": "absent.txt"}, "absent.txt"),
        ((), {"bad": "loose.txt"}, "NAME==VERSION"),
        ((), {"bad": "wheels"}, "no Python starts"),
        (("--", "/opt/bin/python", "train.py"), {}, "write python"),
        (("--", "torchrun", "train.py"), {"gpus": "1,2"}, "one number of GPUs"),
        (("--runs", "3"), {}, "3:8"),
        (("--trials", "0"), {}, "--trials"),
        (("--time", "0"), {}, "--time"),
        (("--wheelhouse", "absent"), {}, "not a folder"),
        (("test_case.py",), {}, "or a command"),
    ],
)
def test_what_cannot_be_bisected_is_said_in_one_line(
    site: Path, more: Sequence[str], sides: Mapping[str, str], said: str
) -> None:
    (site / "loose.txt").write_text("lens>=1\n")
    assert said in refusal(*words_of(*more, **sides), cwd=site, variables=HERE_FIRST)
    assert not (site / ".gpuscale").exists()


def test_without_uv_its_installation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", "/absent/python")
    with pytest.raises(UsageError, match="pip install uv"):
        uv_program()


@pytest.mark.parametrize("reason", get_args(Reason))
def test_a_culprit_that_is_not_proved_is_said_with_what_to_do(reason: Reason) -> None:
    for finding in (BisectionFinding.SUSPECTED, BisectionFinding.UNDECIDED):
        ended = Bisection(finding=finding, loss=None, culprits=((0, 1),), trials=3, reason=reason)
        text = bisection_text(ended, ["a", "b"], "", ["driver 590 → 595"])
        assert text.startswith(finding.name)
        assert text.endswith("; what is left: driver 590 → 595")


def keep_runs(site: Path, slow: Mapping[str, float], noise: float = 0.002) -> None:
    """Make the folder of the bisection, with the runs of every mixture of the packages.

    `slow` has the added part of a step for packages of the bad environment.
    """
    shutil.rmtree(site / ".gpuscale", ignore_errors=True)
    assert bisect(site, "--time", "0.00001").returncode == 3
    (folder,) = (site / ".gpuscale" / "bisect").iterdir()
    made = environments(site, python="")
    rng = random.Random(1)
    for mask in range(2 ** len(made.changes)):
        applied = frozenset(at for at in range(len(made.changes)) if mask >> at & 1)
        place = folder / "runs" / made.name_of(applied)
        place.mkdir(parents=True)
        step_s = 0.01 * (1 + sum(slow.get(made.changes[at].name, 0.0) for at in applied))
        for number in range(1, 120):
            content = measured({1: [step_s * (1 + rng.gauss(0, noise))]})
            (place / f"{number}.jsonl").write_text(results_text(content))


def test_a_bisection_goes_on_from_the_runs_that_it_has(site: Path) -> None:
    few(site, "codec", "gears", "lens", "mixer")
    keep_runs(site, {"gears": 0.2})
    found = bisect(site, "--report", "issue.md")
    assert found.returncode == 0, found.stderr
    assert "FOUND  gears 1 → 2\n" in found.stdout
    # The runs are kept, so that their time says nothing of the time that is left.
    assert "trial 1 of at most 24\n" in found.stderr
    assert "next   keep gears==1" in found.stdout
    assert re.search("alone in .* −16.. %", found.stdout)
    assert re.search(r"taken back .* [−+]0\.\d %", found.stdout)
    report = (site / "issue.md").read_text()
    assert found.stdout.strip() in report
    assert "mixer 1 → 2" in report
    assert "good\n" in report
    assert "good + gears" in report
    assert re.search(r"slower .* bad\n", report)
    # The environments are gone.
    assert not [*site.glob(".gpuscale/bisect/*/environments")]
    spent = bisect(site, "--trials", "1")
    assert spent.returncode == 3
    assert "SUSPECTED" in spent.stdout


@pytest.mark.parametrize(
    ("slow_by", "noise", "code", "said"),
    [(0.0, 0.002, 4, "SAME"), (-0.2, 0.002, 2, "slower than BAD"), (0.05, 0.2, 3, "UNDECIDED")],
)
def test_environments_without_a_loss_are_told_apart(
    site: Path, slow_by: float, noise: float, code: int, said: str
) -> None:
    few(site, "codec", "gears")
    keep_runs(site, {"gears": slow_by}, noise)
    found = bisect(site)
    assert found.returncode == code
    assert said in found.stdout + found.stderr


def test_time_that_is_up_starts_no_run(site: Path) -> None:
    found = bisect(site, "--time", "0.00001")
    assert found.returncode == 3
    assert "--time" in found.stdout
    assert "installing GOOD and BAD\n" in found.stderr
    assert "6 packages differ; at most 27 trials; runs are kept in .gpuscale" in found.stderr
    assert not [*site.glob(".gpuscale/bisect/*/runs/*/*.jsonl")]


def test_a_run_uses_the_packages_of_its_trial(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_slow(site, "lens", 0.04)
    made = environments(site)
    lab = TrialRunner(
        kind=made,
        folder=site / "kept",
        scratch=site / "scratch",
        measured=["python", "train.py"],
        is_command=True,
        options=["--gpus", "1", "--device", "cpu", "--run-seconds", "1"],
        end_s=math.inf,
    )
    (site / "scratch").mkdir()
    monkeypatch.chdir(site)
    assert math.exp(known(lab.make_run(frozenset({3})))) > 0.045
    (site / "train.py").write_text("raise SystemExit('no data here')")
    assert lab.make_run(frozenset({3})) is None
    assert "no data here" in lab.failure or "command" in lab.failure


def git(repository: Path, *words: str) -> str:
    names = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    command = ["git", "-C", str(repository), *names, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Forty commits after the first: from the 27th on steps are slower; five do not start."""
    place = tmp_path / "work"
    (place / "part").mkdir(parents=True)
    git(place, "init", "-q")
    for number in range(41):
        script = SCRIPT.replace("0.01 +", f"{0.016 if number >= 27 else 0.01} +")
        if number in (7, 20, 21, 28, 33):
            script = "raise SystemExit('does not start')"
        (place / "part" / "train.py").write_text(f"# {number}\n{script}")
        git(place, "add", ".")
        git(place, "commit", "-q", "-m", f"change {number}")
    return place


def test_each_commit_is_tried_in_a_folder_of_its_own(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository / "part")
    made = Commits(repository=Path(), span="HEAD~40..HEAD")
    made.prepare(tmp_path / "environments")
    first, *_, last = (change.text.split(" ", 1)[1] for change in made.changes)
    assert (first, last) == ("change 1", "change 40")
    before = git(repository, "worktree", "list")
    for number in (0, 12, 40, *range(20, 30)):
        folder = made.setting(frozenset(range(number))).folder
        assert (known(folder) / "train.py").read_text().startswith(f"# {number}\n")
    # The repository itself knows nothing of them.
    assert git(repository, "worktree", "list") == before
    assert not git(repository, "status", "--short")


@pytest.mark.parametrize(
    ("span", "said"),
    [
        ("HEAD", "write GOOD..BAD"),
        ("HEAD~2...HEAD", "write GOOD..BAD"),
        ("HEAD..HEAD", "not an earlier commit"),
        ("HEAD..HEAD~2", "not an earlier commit"),
        ("HEAD~2..absent", "GOOD..BAD"),
    ],
)
def test_a_range_without_commits_is_refused(repository: Path, span: str, said: str) -> None:
    words = ("--git", ".", span, "--gpus", "1", "--", "python", "train.py")
    assert said in refusal("bisect", *words, cwd=repository)
    assert not (repository / ".gpuscale").exists()


def test_a_folder_without_a_repository_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a git repository"):
        Commits(repository=tmp_path, span="a..b")


def test_variables_that_differ_are_set_or_removed(tmp_path: Path) -> None:
    alike = {"OMP_NUM_THREADS": "4"}
    good, bad = {"NCCL_ALGO": "Tree"}, {"NCCL_ALGO": "Ring", "NCCL_X": "a=b"}
    made = Variables(good=good | alike, bad=bad | alike)
    made.prepare(tmp_path)
    texts = [change.text for change in made.changes]
    assert texts == ["NCCL_ALGO Tree → Ring", "NCCL_X not set → a=b"]
    assert [change.remedy for change in made.changes] == ["NCCL_ALGO=Tree", "unset NCCL_X"]
    for applied, values in (((), ("Tree", None)), ((0,), ("Ring", None)), ((1,), ("Tree", "a=b"))):
        setting = made.setting(frozenset(applied))
        names = ("NCCL_ALGO", "NCCL_X")
        assert setting.variables == {**alike, **dict(zip(names, values, strict=True))}


def recorded(
    path: Path, variables: Mapping[str, str], python: str = "3.11.2", lens: str = "1"
) -> None:
    content = measured({1: [0.01]})
    environment = replace(
        content.environment,
        variables=variables,
        packages={"codec": "1", "lens": lens},
        python_version=python,
        kernel=f"Linux {len(variables)}",
    )
    path.write_text(results_text(replace(content, environment=environment)))


def test_recorded_variables_are_bisected_if_their_packages_are_equal(site: Path) -> None:
    recorded(site / "good.jsonl", {"NCCL_ALGO": "Tree", "CUDA_VISIBLE_DEVICES": "1"})
    recorded(site / "bad.jsonl", {"NCCL_ALGO": "Ring", "CUDA_VISIBLE_DEVICES": "2", "OMP_X": "3"})
    found = bisect(site, "--time", "0.00001", good="good.jsonl", bad="bad.jsonl")
    assert "2 variables differ; at most 21 trials" in found.stderr
    assert "kernel Linux 2 → Linux 3" in found.stdout


def test_results_of_two_pythons_are_refused(site: Path) -> None:
    recorded(site / "good.jsonl", {})
    recorded(site / "bad.jsonl", {}, python="3.9.1")
    found = bisect(site, good="good.jsonl", bad="bad.jsonl")
    assert (found.returncode, found.stdout) == (2, "")
    assert "have Python 3.11 and 3.9" in found.stderr
    # A Python that is not here, of which another patch would do.
    for side in ("good", "bad"):
        recorded(site / f"{side}.jsonl", {}, python="3.1.4", lens=side)
    found = bisect(site, good="good.jsonl", bad="bad.jsonl")
    assert "uv finds no Python 3.1 for" in found.stderr


def test_what_uv_refuses_is_said_in_one_line(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(site / "wheels")
    (site / "wheels").mkdir()
    for more, fault, said in (
        (("--wheelhouse", "wheels"), "", "you require batcher==1"),
        (("--index-url", "http://127.0.0.1:9/simple"), "", "or lists (.txt) without it"),
        ((), "error: failed to copy: No space left on device (os error 28)", "free some space"),
    ):
        if fault:
            (site / "uv").write_text(f"#!/bin/sh\necho '{fault}' >&2\nexit 2\n")
            (site / "uv").chmod(0o755)
            monkeypatch.setattr(kinds, "uv_program", lambda: str(site / "uv"))
        words = ["good.txt", "bad.txt", "--gpus", "1", *more, "--", "python", "train.py"]
        answer = gpuscale("bisect", *words, cwd=site, variables={"UV_HTTP_RETRIES": "0"})
        *_, problem = answer.stderr.splitlines()
        assert (answer.returncode, said in problem) == (2, True), answer.stderr
        assert not [*site.glob(".gpuscale/bisect/*/environments")]


def test_a_folder_in_use_is_refused_to_a_second_process(tmp_path: Path) -> None:
    first, second = (sole_use(tmp_path, "in use; wait for it") for _ in range(2))
    with first, pytest.raises(FileError, match="in use; wait"), second:
        pass


@pytest.mark.thorough
def test_the_slow_commit_of_forty_is_found_and_proved(repository: Path) -> None:
    words = ["--git", "..", "HEAD~40..HEAD", "--gpus", "1", "--device", "cpu", "--run-seconds", "1"]
    command = ("bisect", *words, "--", "python", "train.py")
    found = gpuscale(*command, cwd=repository / "part", variables=HERE_FIRST)
    assert found.returncode == 0, found.stderr
    # The 28th does not start, but the 26th and the 27th do.
    assert re.search(r"FOUND  \w+ change 27\n", found.stdout)
    assert "next   git show" in found.stdout


@pytest.mark.thorough
def test_the_slow_variable_is_found_and_proved(tmp_path: Path) -> None:
    slow = "extra = 0.012 * (os.environ.get('NCCL_ALGO') == 'Ring')"
    script = SCRIPT.replace("extra = 0.0", slow).replace("import importlib", "import os, importlib")
    (tmp_path / "train.py").write_text(script)
    recorded(tmp_path / "good.jsonl", {"NCCL_ALGO": "Tree", "NCCL_PROTO": "Simple"})
    variables = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL", "NCCL_NVLS_ENABLE": "0"}
    recorded(tmp_path / "bad.jsonl", variables)
    found = bisect(tmp_path, good="good.jsonl", bad="bad.jsonl")
    assert found.returncode == 0, found.stderr
    assert "FOUND  NCCL_ALGO Tree → Ring\n" in found.stdout
    assert re.search(r"trial 1 of at most 21, about \d+ min \d+ s left\n", found.stderr)
    assert "next   NCCL_ALGO=Tree" in found.stdout


@pytest.mark.thorough
def test_a_killed_bisection_goes_on_and_finds_the_slow_package(site: Path) -> None:
    make_slow(site, "lens", 0.02)
    # Another package pins it, so that both move together at first.
    make_slow(site, "mixer", 0.0, needs="lens==2")
    command = [sys.executable, "-m", "gpuscale", *words_of()]
    started = subprocess.Popen(command, cwd=site, env={**os.environ, **HERE_FIRST})
    while len(made := [*site.glob(".gpuscale/bisect/*/runs/*/*.jsonl")]) < 4:
        assert started.poll() is None
        time.sleep(0.5)
    started.kill()
    started.wait()
    # The last of them may be a part only.
    kept = sorted(made, key=lambda file: file.stat().st_mtime)[:3]
    moments = [file.stat().st_mtime for file in kept]
    found = bisect(site, "--report", "issue.md")
    assert "FOUND  lens 1 → 2\n" in found.stdout
    assert "keep lens==1" in found.stdout
    assert "2 move together" in found.stderr
    report = (site / "issue.md").read_text()
    assert found.stdout.strip() in report
    assert "nozzle 1 → 2" in report
    assert [file.stat().st_mtime for file in kept] == moments
