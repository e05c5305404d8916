"""A checkout in which the job scripts and `gpuscale night` run for real.

Stand-ins take the place of what they call: pytest, `gpuscale show`, `gpuscale compare` and the
commands of schedulers.
"""

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
JOB = "4711"
# What each scheduler sets for a job, apart from the folder that it was submitted from.
SCRIPTS = {
    "arc4.sge": {"JOB_ID": JOB},
    "juwels-booster.sbatch": {"SLURM_JOB_ID": JOB, "SLURM_CPUS_PER_TASK": "96"},
    "cte-power.sbatch": {"SLURM_JOB_ID": JOB, "SLURM_CPUS_PER_TASK": "160"},
    "waic.lsf": {"LSB_JOBID": JOB, "GPUSCALE_BASELINE": "baselines/gpu-node.json"},
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
[ -z "$SAYS" ] || echo "$SAYS"
source="$MEASURED"
[ ! -e "$MEASURED.$attempt" ] || source="$MEASURED.$attempt"
[ "$PYTEST_EXIT" = 5 ] || [ "$MEASURED" = nothing ] || cp "$source" "$results"
[ ! -e "$MEASURED.$attempt.exit" ] || PYTEST_EXIT=$(cat "$MEASURED.$attempt.exit")
{
    printf '<testsuite name="pytest" errors="0" failures="0"><testcase/>'
    while IFS= read -r reason; do
        [ -z "$reason" ] || printf '<skipped type="pytest.skip" message="%s">x</skipped>' "$reason"
    done <<<"$SKIPPED"
    printf '</testsuite>'
} >"$junit"
[ -z "$SIGNAL" ] || kill -s "$SIGNAL" $$
exit "$PYTEST_EXIT"
"""
STUB_GPUSCALE = """\
#!/bin/bash
case $1 in night | --version) exec "$PYTHON" -m gpuscale "$@" ;; esac
printf '%s\\n' "$*" >>"$CALLS/gpuscale"
[ "$1" = show ] && { [ -s "$2" ]; exit; }
[ "$COMPARISON" = crashed ] || echo "a table"
exit "$COMPARE_EXIT"
"""
MEASURED = REPOSITORY / "tests" / "data" / "two_cpu_ranks.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """What a night left behind."""

    exit_code: int
    output: str
    root: Path

    @property
    def directory(self) -> Path:
        (directory,) = self.root.glob(f".gpuscale/nightly/*/*_{JOB}")
        return directory

    def calls(self, program: str) -> list[str]:
        path = self.root / "calls" / program
        return path.read_text().splitlines() if path.exists() else []

    def environment(self) -> dict[str, str]:
        """The environment that pytest ran in."""
        lines = self.calls("environment")
        return {name: value for name, _, value in (line.partition("=") for line in lines)}


def make_checkout(folder: Path) -> Path:
    """A checkout with the real ci/ and with stubs for pytest and gpuscale in its .venv."""
    root = folder / "checkout"
    shutil.copytree(REPOSITORY / "ci", root / "ci")
    (root / "calls").mkdir()
    (root / "baselines").mkdir()
    for name in ("arc4", "juwels-booster", "cte-power", "gpu-node"):
        (root / "baselines" / f"{name}.json").write_text("{}\n")
    write_program(root / ".venv/bin/pytest", STUB_PYTEST)
    write_program(root / ".venv/bin/gpuscale", STUB_GPUSCALE)
    write_program(root / "stand-ins/module", '#!/bin/bash\necho "modules: $*"\n')
    return root


def use_real_pytest(root: Path, test: str) -> Path:
    """Let the checkout's pytest be the real one, for one test file; its path.

    Only the measurement is a stand-in: a results file is there once the first test begins.
    """
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
                shutil.copy("{MEASURED}", item.config.getoption("results"))
            """)
    )
    path = cases / "test_mnist_cnn.py"
    path.write_text(test)
    return path


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def job_environment(root: Path, settings: Mapping[str, str]) -> dict[str, str]:
    return {
        "CALLS": str(root / "calls"),
        "PYTEST_EXIT": "0",
        "COMPARE_EXIT": "0",
        "MEASURED": str(MEASURED),
        "PYTHON": sys.executable,
        "SAYS": "",
        "SIGNAL": "",
        "COMPARISON": "printed",
        "SKIPPED": "",
        "GPUSCALE_MODULES": "",
        "PATH": os.environ["PATH"],
        **settings,
    }


def run_script(root: Path, script: str, **settings: str) -> Night:
    """Runs a job script as its scheduler does: a copy of it, from a folder somewhere else."""
    spool = root.parent / "spool"
    spool.mkdir(exist_ok=True)
    copy = shutil.copy(root / "ci" / script, spool / "job_script")
    submitted_from = {name: str(root) for name in SUBMITTED_FROM}
    environment = job_environment(root, submitted_from | SCRIPTS[script] | settings)
    environment["PATH"] = f"{root}/stand-ins:{environment['PATH']}"
    return run_night(["bash", str(copy)], spool, environment, root)


def run_night(command: list[str], cwd: Path, environment: Mapping[str, str], root: Path) -> Night:
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return Night(exit_code=done.returncode, output=done.stdout + done.stderr, root=root)
