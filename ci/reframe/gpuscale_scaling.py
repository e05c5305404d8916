"""A ReFrame test that measures how training scales, and fails if gpuscale's verdict is a loss.

    reframe -c ci/reframe -r -S cases=/path/to/bench_cases -S gpus=1,2,4 -S baseline=/path/site.json

On a cluster, set num_tasks and num_gpus_per_node as for any multi-GPU test of the site.
"""

import json
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn


@rfm.simple_test
class GpuScaling(rfm.RunOnlyRegressionTest):
    cases = variable(str, value=str(Path(__file__).parents[2] / "bench_cases"))
    gpus = variable(str, value="1,2")
    baseline = variable(str, value="")
    options = variable(str, value="")
    valid_systems = valid_prog_environs = ["*"]
    executable = "pytest"
    time_limit = "4h"

    @run_before("run")
    def measure(self):
        judged = f"--baseline {self.baseline}" if self.baseline else ""
        words = f"{self.cases} --gpus {self.gpus} --results results.jsonl {judged} {self.options}"
        self.executable_opts = [words, "; code=$?"]
        shown = "gpuscale show results.jsonl --format json >shown.json"
        self.postrun_cmds = [shown, "echo exit code $code"]

    @sanity_function
    def has_no_loss(self):
        return sn.assert_found(
            r"^exit code 0$", self.stdout, "gpuscale found a loss; see rfm_job.out"
        )

    @run_before("performance")
    def name_figures(self):
        rows = json.loads(Path(self.stagedir, "shown.json").read_text())["rows"]
        figures = {"samples_per_s": "samples/s", "speedup": "speedup", "efficiency": "efficiency"}
        for row in rows:
            name = (
                f"{row['configuration']['case']}_{row['configuration']['strategy']}_{row['gpus']}"
            )
            for key, unit in figures.items():
                if row[key] is not None:
                    value = sn.make_performance_function(sn.defer(row[key]["value"]), unit)
                    self.perf_variables[f"{name}_{key}"] = value
