"""A checkout in which the job scripts and `gpuscale night` run for real.

Stand-ins take the place of what they call: pytest, `gpuscale doctor` and the commands of
schedulers. Results and baselines are real, and so is the comparison.
"""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import builders as make
from changing import replace
from command_line import ran
from warm_sessions import TIMEOUT_S

from gpuscale.records import Baseline, Configuration
from gpuscale.store.files import write_baseline

REPOSITORY = Path(__file__).parents[1]
JOB = "4711"
# What each scheduler sets for a job, apart from the folder that it was submitted from.
SCRIPTS = {
    "arc4.sge": {"JOB_ID": JOB},
    "juwels-booster.sbatch": {"SLURM_JOB_ID": JOB, "SLURM_CPUS_PER_TASK": "96"},
    "cte-power.sbatch": {"SLURM_JOB_ID": JOB, "SLURM_CPUS_PER_TASK": "160"},
    "waic.lsf": {"LSB_JOBID": JOB},
}
SUBMITTED_FROM = ("SGE_O_WORKDIR", "SLURM_SUBMIT_DIR", "LS_SUBCWD")
STUB_PYTEST = """\
#!/bin/bash
printf '%s\\n' "$*" >>"$CALLS/pytest"
env >"$CALLS/environment"
attempt=$(wc -l <"$CALLS/pytest")
while [ $# -gt 0 ]; do
    case $1 in --results | --resume) results=$2 ;; --junitxml) junit=$2 ;; esac
    shift
done
echo "measuring"
source="$MEASURED"
[ ! -e "$MEASURED.$attempt" ] || source="$MEASURED.$attempt"
[ "$PYTEST_EXIT" = 5 ] || [ "$MEASURED" = nothing ] || cp "$source" "$results"
[ ! -e "$MEASURED.$attempt.exit" ] || PYTEST_EXIT=$(cat "$MEASURED.$attempt.exit")
{
    printf '<testsuite name="pytest" errors="0" failures="0"><testcase/>'
    for why in $LEFT_OUT; do
        printf '<testcase><properties><property name="gpuscale left out" value="%s"/>' "${why//_/ }"
        printf '</properties><skipped message="not %s">x</skipped></testcase>' "$why"
    done
    printf '</testsuite>'
} >"$junit"
exit "$PYTEST_EXIT"
"""
STUB_GPUSCALE = """\
#!/bin/bash
[ "$1" = doctor ] && exit
exec "$PYTHON" -m gpuscale "$@"
"""
CASES = ("mnist_cnn", "resnet50", "resnet50v2_cifar")
# What is measured on some numbers of GPUs, and where, for each exit code of the comparison.
VERDICTS = {
    0: ({1: 0.1, 2: 0.1, 4: 0.1}, make.environment()),
    1: ({1: 0.2, 2: 0.2, 4: 0.2}, make.environment()),
    3: ({1: 0.1}, make.environment()),
    4: ({1: 0.1, 2: 0.1, 4: 0.1}, make.environment("Tesla P100-PCIE-16GB")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    exit_code: int
    output: str
    root: Path

    def ended(self, exit_code: int = 0) -> "Night":
        assert self.exit_code == exit_code, self.output
        return self

    @property
    def directory(self) -> Path:
        (directory,) = self.root.glob(f".gpuscale/nightly/*/*_{JOB}")
        return directory

    def judged(self) -> set[tuple[str, int]]:
        document = json.loads((self.directory / "comparison.json").read_text())
        return {(entry["case"], entry["gpus"]) for entry in document["entries"]}

    def calls(self, program: str) -> list[str]:
        path = self.root / "calls" / program
        return path.read_text().splitlines() if path.exists() else []

    def environment(self) -> dict[str, str]:
        lines = self.calls("environment")
        return {name: value for name, _, value in (line.partition("=") for line in lines)}


def make_checkout(folder: Path) -> Path:
    """A checkout with the real ci/ and with stubs for pytest and gpuscale in its .venv."""
    root = folder / "checkout"
    shutil.copytree(REPOSITORY / "ci", root / "ci")
    (root / "calls").mkdir()
    (root / "baselines").mkdir()
    for name in ("arc4", "juwels-booster", "cte-power", "gpu-node"):
        write_baseline(root / "baselines" / f"{name}.json", _baseline())
    for code, (times_s, where) in VERDICTS.items():
        runs = [
            make.run(gpus, time_s, configuration=configuration, index=index)
            for configuration in _configurations()
            for gpus, time_s in times_s.items()
            for index in (1, 2, 3)
        ]
        text = make.results_text(make.results(*runs, where=where))
        (root / f"verdict-{code}.jsonl").write_text(text)
    blocked = "import sys\nsys.modules['jinja2'] = None\n"
    write_program(root / "without-plots/sitecustomize.py", blocked)
    write_program(root / ".venv/bin/pytest", STUB_PYTEST)
    write_program(root / ".venv/bin/gpuscale", STUB_GPUSCALE)
    write_program(root / "stand-ins/module", '#!/bin/bash\necho "modules: $*"\n')
    return root


def _configurations() -> list[Configuration]:
    return [replace(make.CNN, case=case) for case in CASES]


def _baseline() -> Baseline:
    times_s = {gpus: [0.1] * 6 for gpus in (1, 2, 4)}
    all_cases = [make.baseline(times_s, configuration=one) for one in _configurations()]
    return replace(all_cases[0], runs=tuple(run for one in all_cases for run in one.runs))


def use_real_pytest(root: Path, test: str) -> None:
    """Use the real pytest on this test file, with results that are there once a test begins."""
    write_program(
        root / ".venv/bin/pytest",
        f'#!/bin/bash\nexec "{sys.executable}" -m pytest -p no:gpuscale.plugin "$@"\n',
    )
    cases = root / "bench_cases"
    cases.mkdir()
    (cases / "conftest.py").write_text(
        textwrap.dedent(f"""\
            import shutil

            def pytest_addoption(parser):
                for name in ("strategy", "gpus", "device", "size", "runs", "results"):
                    parser.addoption(f"--{{name}}")

            def pytest_runtest_setup(item):
                shutil.copy("{root}/verdict-0.jsonl", item.config.getoption("results"))
            """)
    )
    (cases / "test_mnist_cnn.py").write_text(test)


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def job_environment(root: Path, settings: Mapping[str, str], *, verdict: int = 0) -> dict[str, str]:
    """The environment of a job whose results give this exit code of `gpuscale compare`."""
    return {
        "CALLS": str(root / "calls"),
        "PYTEST_EXIT": "0",
        "MEASURED": str(root / f"verdict-{verdict}.jsonl"),
        "PYTHON": sys.executable,
        "LEFT_OUT": "",
        "PATH": os.environ["PATH"],
        # Pages take seconds, and one test has them.
        "PYTHONPATH": f"{root / 'without-plots'}:{REPOSITORY}",
        **settings,
    }


def run_script(root: Path, script: str, *, verdict: int = 0, **settings: str) -> Night:
    """Runs a job script as its scheduler does: a copy of it, from a folder somewhere else."""
    spool = root.parent / "spool"
    spool.mkdir(exist_ok=True)
    copy = shutil.copy(root / "ci" / script, spool / "job_script")
    submitted_from = {name: str(root) for name in SUBMITTED_FROM}
    in_the_job = submitted_from | SCRIPTS[script] | settings
    environment = job_environment(root, in_the_job, verdict=verdict)
    environment["PATH"] = f"{root}/stand-ins:{environment['PATH']}"
    return run_night(["bash", str(copy)], spool, environment, root)


def run_night(command: list[str], cwd: Path, environment: Mapping[str, str], root: Path) -> Night:
    done = ran(*command, cwd=cwd, env=environment, timeout=TIMEOUT_S)
    return Night(exit_code=done.returncode, output=done.stdout + done.stderr, root=root)
