"""Workflows of GitLab and GitHub, and the test of ReFrame, run as these services run them."""

import json
import os
import re
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from ci_checkout import JOB, REPOSITORY, job_environment, make_checkout, run_night, write_program
from measuring import TINY_CASE
from statements import known

WORKFLOWS = {"gitlab-ci.yml": {"CI_JOB_ID": JOB}, "github-actions.yml": {"NIGHT": JOB}}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path)


def commands_of(workflow: str, first_line: str) -> str:
    """The literal block that begins so, out of a YAML file; no YAML parser is needed."""
    lines = (REPOSITORY / "ci" / workflow).read_text().splitlines()
    (start,) = [number for number, line in enumerate(lines) if line.strip().startswith(first_line)]
    assert re.fullmatch(r" +(- |run: )\|", lines[start - 1])
    indent = lines[start][: -len(lines[start].lstrip())]
    block = takewhile(lambda line: line.startswith(indent), lines[start:])
    return textwrap.dedent("\n".join(block))


SHELL = ["bash", "-eo", "pipefail", "-c"]


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_workflow_measures_judges_and_hands_on_the_exit_code(checkout: Path, workflow: str) -> None:
    text = (REPOSITORY / "ci" / workflow).read_text()
    variables = dict(re.findall(r"^ +(GPUSCALE_\w+): (\S+)$", text, re.MULTILINE))
    # That of no shell's own failure.
    environment = job_environment(checkout, variables | WORKFLOWS[workflow], verdict=3)
    command = [*SHELL, commands_of(workflow, "# Before the job")]
    night = run_night(command, checkout, environment, checkout).ended(3)
    (measured,) = night.calls("pytest")
    asked = "--strategy ddp --gpus 1,2,4 --device cuda --size full --runs 3"
    assert measured.startswith(f"bench_cases {asked} --results ")
    assert {gpus for _, gpus in night.judged()} == {1, 2, 4}
    for kept in ("comparison.json", "comparison.md", "comparison.xml"):
        assert (night.directory / kept).exists()
    # Where the file says that it picks the night up.
    (place,) = re.findall(r"^ +(?:- |path: )(\.gpuscale/\S*?_)\$.*/$", text, re.MULTILINE)
    assert list(checkout.glob(place + JOB)) == [night.directory]


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_workflow_heeds_the_settings_of_the_site(checkout: Path, workflow: str) -> None:
    settings = {"GPUSCALE_BASELINE": "baselines/arc4.json", "GPUSCALE_DATA_ROOT": "/some data"}
    settings |= {"GPUSCALE_GPUS": "1,2,4", "GPUSCALE_RUNS": "5", "GPUSCALE_JUDGED_GPUS": "2,4"}
    command = [*SHELL, commands_of(workflow, "# Before the job")]
    environment = job_environment(checkout, settings | WORKFLOWS[workflow])
    night = run_night(command, checkout, environment, checkout).ended()
    (measured,) = night.calls("pytest")
    assert " --gpus 1,2,4 " in measured
    assert " --runs 5 --data-root /some data --results " in measured
    judged_against = (checkout / "baselines/arc4.json").read_text()
    assert (night.directory / "baseline.json").read_text() == judged_against
    assert {gpus for _, gpus in night.judged()} == {2, 4}


@pytest.mark.parametrize("compared", [True, False])
def test_github_shows_the_verdict(tmp_path: Path, compared: bool) -> None:
    night = tmp_path / f".gpuscale/nightly/github/2026-11-21_{JOB}"
    night.mkdir(parents=True)
    (night / "night.txt").write_text("night: regressed\n")
    if compared:
        (night / "comparison.md").write_text("### a verdict\n")
    summary = tmp_path / "summary.md"
    environment = {"NIGHT": JOB, "GITHUB_STEP_SUMMARY": str(summary), "PATH": os.environ["PATH"]}
    commands = commands_of("github-actions.yml", "cd .gpuscale")
    run_night([*SHELL, commands], tmp_path, environment, tmp_path).ended()
    verdict = "### a verdict\n" if compared else ""
    assert summary.read_text() == f"{verdict}\n```\nnight: regressed\n```\n"


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_night_is_compared_before_the_service_ends_it(tmp_path: Path, workflow: str) -> None:
    text = (REPOSITORY / "ci" / workflow).read_text()
    limit = known(re.search(r"^ +timeout(?:-minutes)?: (\d+)", text, re.MULTILINE))
    commands = commands_of(workflow, "# Before the job")
    asked = known(re.search(r"timeout --preserve-status -s TERM (\d+)m ", commands))
    assert int(asked[1]) + 5 <= int(limit[1])
    results = 'cp "$MEASURED" "$(printf "%s\\n" "$@" | grep results.jsonl)"; echo >"$CALLS/pytest"'
    program = f"#!/bin/bash\n{results}\nsleep 120 & trap 'kill $!; exit 143' TERM; wait\n"
    variables = dict(re.findall(r"^ +(GPUSCALE_\w+): (\S+)$", text, re.MULTILINE))
    # The longer where a busy machine has not begun to measure by then.
    for seconds in (3, 60):
        checkout = make_checkout(tmp_path / str(seconds))
        write_program(checkout / ".venv/bin/pytest", program)
        shorter = commands.replace(asked[0], asked[0].replace(f"{asked[1]}m", f"{seconds}s"))
        environment = job_environment(checkout, variables | WORKFLOWS[workflow])
        night = run_night([*SHELL, shorter], checkout, environment, checkout)
        if night.calls("pytest"):
            break
    assert night.exit_code == 5, night.output
    assert "stopped by SIGTERM" in (night.directory / "night.txt").read_text()
    assert {gpus for _, gpus in night.judged()} == {1, 2, 4}


TESTED = """

    def forward(self, model, inputs):
        time.sleep(float(os.environ["STEP_S"]))
        return model(inputs)


@pytest.mark.gpuscale(case=Tiny)
def test_tiny(scaling):
    scaling()
"""


def reframe(folder: Path, *settings: str, step_s: float) -> dict[str, Any]:
    """The case in the report of a ReFrame session that measures with these settings."""
    report, programs = folder / "report.json", Path(sys.executable).parent
    command = [str(programs / "reframe"), "-c", str(REPOSITORY / "ci/reframe"), "-r"]
    command += ["--keep-stage-files", "-S", f"cases={folder / 'test_tiny.py'}"]
    command += [word for setting in settings for word in ("-S", setting)]
    told = {"RFM_REPORT_FILE": str(report), "STEP_S": str(step_s)}
    variables = {**os.environ, **told, "PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run(command, cwd=folder, env=variables, check=False, stdout=subprocess.DEVNULL)
    (case,) = json.loads(report.read_text())["runs"][0]["testcases"]
    assert isinstance(case, dict)
    return case


@pytest.mark.scheduler
@pytest.mark.skipif(find_spec("reframe") is None, reason="ReFrame-HPC is not installed")
def test_reframe_logs_the_scaling_and_fails_on_a_loss(tmp_path: Path) -> None:
    (tmp_path / "test_tiny.py").write_text(f"import os\nimport time\n{TINY_CASE}{TESTED}")
    case = reframe(tmp_path, "options=--run-seconds=1", step_s=0.01)
    assert case["result"] == "pass"
    names = {name.rpartition(":")[2] for name in case["perfvalues"]}
    assert {"tiny_ddp_2_samples_per_s", "tiny_ddp_2_speedup", "tiny_ddp_2_efficiency"} <= names
    (results,) = tmp_path.glob("stage/**/results.jsonl")
    baseline = tmp_path / "base.json"
    record = [sys.executable, "-m", "gpuscale", "baseline", "record", str(results), "--weak"]
    subprocess.run([*record, "--cluster", "here", "-o", str(baseline)], check=True)
    settings = ("options=--run-seconds=1", f"baseline={baseline}")
    assert reframe(tmp_path, *settings, step_s=0.1)["result"] == "fail"
