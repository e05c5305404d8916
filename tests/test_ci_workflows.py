import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest
from ci_checkout import JOB, REPOSITORY, job_environment, make_checkout, run_night, write_program

WORKFLOWS = {
    "gitlab-ci.yml": {"CI_JOB_ID": JOB},
    "github-actions.yml": {"NIGHT": JOB, "RUNNER_TEMP": "."},
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path)


def commands_of(workflow: str, first_line: str) -> str:
    """The literal block that begins so, out of a YAML file; no YAML parser is needed."""
    lines = (REPOSITORY / "ci" / workflow).read_text().splitlines()
    (start,) = [number for number, line in enumerate(lines) if line.strip().startswith(first_line)]
    assert re.fullmatch(r" +(- |run: )\|", lines[start - 1])
    indent = re.match(" *", lines[start])
    assert indent is not None
    block = []
    for line in lines[start:]:
        if not line.startswith(indent[0]):
            break
        block.append(line)
    return textwrap.dedent("\n".join(block))


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_workflow_measures_judges_and_hands_on_the_exit_code(checkout: Path, workflow: str) -> None:
    text = (REPOSITORY / "ci" / workflow).read_text()
    variables = dict(re.findall(r"^ +(GPUSCALE_\w+): (\S+)$", text, re.MULTILINE))
    # That of no shell's own failure.
    environment = job_environment(checkout, variables | WORKFLOWS[workflow], verdict=3)
    command = ["bash", "-eo", "pipefail", "-c", commands_of(workflow, "# Before the job")]
    night = run_night(command, checkout, environment, checkout)
    assert night.exit_code == 3, night.output
    (measured,) = night.calls("pytest")
    assert measured.startswith(
        "bench_cases --strategy ddp --gpus 1,2,4 --device cuda --size full --runs 3 --results "
    )
    assert {gpus for _, gpus in night.judged()} == {1, 2, 4}
    for kept in ("comparison.json", "comparison.md", "comparison.xml"):
        assert (night.directory / kept).exists()
    assert (checkout / "annotations.txt").exists() == (workflow == "github-actions.yml")
    # Where the file says that it picks the night up.
    pattern = re.search(r"^ +(?:- |path: )(\.gpuscale/\S*?_)\$.*/$", text, re.MULTILINE)
    assert pattern is not None
    assert list(checkout.glob(pattern[1] + JOB)) == [night.directory]


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_workflow_heeds_the_settings_of_the_site(checkout: Path, workflow: str) -> None:
    settings = {
        "GPUSCALE_BASELINE": "baselines/arc4.json",
        "GPUSCALE_GPUS": "1,2,4",
        "GPUSCALE_RUNS": "5",
        "GPUSCALE_DATA_ROOT": "/some data",
        "GPUSCALE_JUDGED_GPUS": "2,4",
    }
    command = ["bash", "-eo", "pipefail", "-c", commands_of(workflow, "# Before the job")]
    environment = job_environment(checkout, settings | WORKFLOWS[workflow])
    night = run_night(command, checkout, environment, checkout)
    assert night.exit_code == 0, night.output
    (measured,) = night.calls("pytest")
    assert " --gpus 1,2,4 " in measured
    assert " --runs 5 --data-root /some data --results " in measured
    judged_against = (checkout / "baselines/arc4.json").read_text()
    assert (night.directory / "baseline.json").read_text() == judged_against
    assert {gpus for _, gpus in night.judged()} == {2, 4}


@pytest.mark.parametrize("compared", [True, False])
def test_github_shows_the_verdict_and_annotations(tmp_path: Path, compared: bool) -> None:
    night = tmp_path / f".gpuscale/nightly/github/2026-11-21_{JOB}"
    night.mkdir(parents=True)
    (night / "night.txt").write_text("night: regressed\n")
    if compared:
        (night / "comparison.md").write_text("### a verdict\n")
        (tmp_path / "annotations.txt").write_text("::error title=x::y\n")
    summary = tmp_path / "summary.md"
    environment = {"NIGHT": JOB, "GITHUB_STEP_SUMMARY": str(summary)}
    environment |= {"RUNNER_TEMP": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", commands_of("github-actions.yml", "cd .gpuscale")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == ("::error title=x::y\n" if compared else "")
    verdict = "### a verdict\n" if compared else ""
    assert summary.read_text() == f"{verdict}\n```\nnight: regressed\n```\n"


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_night_is_compared_before_the_service_ends_it(checkout: Path, workflow: str) -> None:
    text = (REPOSITORY / "ci" / workflow).read_text()
    limit = re.search(r"^ +timeout(?:-minutes)?: (\d+)", text, re.MULTILINE)
    commands = commands_of(workflow, "# Before the job")
    asked = re.search(r"timeout --preserve-status -s TERM (\d+)m ", commands)
    assert limit is not None
    assert asked is not None
    assert int(asked[1]) + 5 <= int(limit[1])
    # Of a measurement that would go on for a minute, one second is waited for.
    results = 'cp "$MEASURED" "$(printf "%s\\n" "$@" | grep results.jsonl)"'
    program = f"#!/bin/bash\n{results}\nsleep 60 & trap 'kill $!; exit 143' TERM; wait\n"
    write_program(checkout / ".venv/bin/pytest", program)
    variables = dict(re.findall(r"^ +(GPUSCALE_\w+): (\S+)$", text, re.MULTILINE))
    shorter = commands.replace(asked[0], asked[0].replace(f"{asked[1]}m", "3s"))
    command = ["bash", "-eo", "pipefail", "-c", shorter]
    environment = job_environment(checkout, variables | WORKFLOWS[workflow])
    night = run_night(command, checkout, environment, checkout)
    assert night.exit_code == 5, night.output
    assert "stopped by SIGTERM" in (night.directory / "night.txt").read_text()
    assert {gpus for _, gpus in night.judged()} == {1, 2, 4}
