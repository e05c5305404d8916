import re
import textwrap
from pathlib import Path

import pytest
from ci_checkout import JOB, REPOSITORY, job_environment, make_checkout, run_night

WORKFLOWS = {
    "gitlab-ci.yml": {"CI_JOB_ID": JOB},
    "github-actions.yml": {"NIGHT": JOB},
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path)


def commands_of(workflow: str) -> str:
    """The literal block that calls nightly.sh, out of a YAML file; no YAML parser is needed."""
    lines = (REPOSITORY / "ci" / workflow).read_text().splitlines()
    (call,) = [number for number, line in enumerate(lines) if "ci/nightly.sh" in line]
    assert re.fullmatch(r" +(- |run: )\|", lines[call - 1])
    indent = re.match(" *", lines[call])
    assert indent is not None
    block = []
    for line in lines[call:]:
        if not line.startswith(indent[0]):
            break
        block.append(line)
    return textwrap.dedent("\n".join(block))


@pytest.mark.parametrize("workflow", WORKFLOWS)
@pytest.mark.parametrize("compare_exit", [0, 1, 3])
def test_workflow_measures_judges_and_hands_on_the_exit_code(
    checkout: Path, workflow: str, compare_exit: int
) -> None:
    text = (REPOSITORY / "ci" / workflow).read_text()
    variables = dict(re.findall(r"^ +(GPUSCALE_\w+): (\S+)$", text, re.MULTILINE))
    settings = variables | WORKFLOWS[workflow] | {"COMPARE_EXIT": str(compare_exit)}
    command = ["bash", "-eo", "pipefail", "-c", commands_of(workflow)]
    night = run_night(command, checkout, job_environment(checkout, settings), checkout)
    assert night.exit_code == compare_exit, night.output
    (measured,) = night.calls("pytest")
    assert measured.startswith(
        "bench_cases --strategy ddp --gpus 1,2,4 --device cuda --size full --runs 3 --results "
    )
    compared = night.calls("gpuscale")[-1]
    assert re.fullmatch(
        r"compare baselines/gpu-node\.json \S+/results\.jsonl --gpus 1,2,4", compared
    )
    # Where the file says that it picks the night up.
    pattern = re.search(r"^ +(?:- |path: )(\.gpuscale/\S*?_)\$.*/$", text, re.MULTILINE)
    assert pattern is not None
    assert list(checkout.glob(pattern[1] + JOB)) == [night.directory]
