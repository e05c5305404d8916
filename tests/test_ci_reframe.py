"""The ReFrame test of ci/reframe, run by a real ReFrame, with and without a loss."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from measuring import REPOSITORY, TINY_CASE

pytestmark = [
    pytest.mark.scheduler,
    pytest.mark.skipif(find_spec("reframe") is None, reason="ReFrame-HPC is not installed"),
]

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
    variables = {
        **os.environ,
        "RFM_REPORT_FILE": str(report),
        "STEP_S": str(step_s),
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    subprocess.run(command, cwd=folder, env=variables, check=False, stdout=subprocess.DEVNULL)
    (case,) = json.loads(report.read_text())["runs"][0]["testcases"]
    assert isinstance(case, dict)
    return case


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
