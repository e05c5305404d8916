import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from changing import replace
from ci_checkout import REPOSITORY, SCRIPTS, write_program
from command_line import gpuscale, refusal

from gpuscale.base.errors import SchedulerError, UsageError
from gpuscale.campaigns.cluster_profile import ClusterProfile, GpuNodes, find_profile
from gpuscale.campaigns.job_options import with_options
from gpuscale.campaigns.job_script import JobRequest, job_script
from gpuscale.campaigns.night.outcome import job_exit
from gpuscale.cli import submit
from gpuscale.measure.schedulers import SCHEDULERS, scheduler_of_job
from gpuscale.measure.schedulers import scheduler as base
from gpuscale.measure.schedulers.scheduler import JobState
from gpuscale.measure.schedulers.sge import Sge


def request(known: ClusterProfile | str, gpus: Sequence[int], **options: object) -> JobRequest:
    known = find_profile(known) if isinstance(known, str) else known
    given = {"--time": "01:00:00"} | {f"--{name}": value for name, value in options.items()}
    known = with_options(known, given)
    return JobRequest(profile=replace(known, measure=replace(known.measure, gpus=tuple(gpus))))


def directives(script: str) -> list[str]:
    return re.findall(r"^#(?:SBATCH|\$|BSUB|PBS) (.*)$", script, re.MULTILINE)


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_scripts_in_ci_are_what_submit_prints(script: str) -> None:
    printed = gpuscale("submit", script.partition(".")[0], "--print", cwd=REPOSITORY)
    assert (printed.returncode, printed.stderr) == (0, "")
    assert (REPOSITORY / "ci" / script).read_text() == printed.stdout


@pytest.mark.parametrize(
    ("name", "gpus", "expected"),
    [
        ("arc4", (1, 2), (1, 2, 1, 20, "local")),
        ("cte-power", (1,), (1, 1, 1, 40, "local")),
        ("cte-power", (1, 2, 4), (1, 4, 1, 160, "local")),
        ("cte-power", (4, 8), (2, 4, 4, 40, "slurm")),
        ("juwels-booster", (1,), (1, 4, 1, 96, "local")),
        ("juwels-booster", (1, 4, 16, 64, 128), (32, 4, 4, 24, "slurm")),
        ("waic", (1, 8), (2, 4, 4, 4, "mpirun")),
    ],
)
def test_the_largest_number_of_gpus_decides_the_allocation(
    name: str, gpus: tuple[int, ...], expected: tuple[int, int, int, int, str]
) -> None:
    asked = request(name, gpus)
    demand = asked.demand
    found = (demand.nodes, demand.gpus_per_node, demand.tasks_per_node, demand.cores_per_task)
    assert (*found, asked.launcher) == expected


def test_an_allocation_that_a_cluster_cannot_give_is_refused() -> None:
    with pytest.raises(UsageError, match="ask for at most 4"):
        assert request("arc4", (1, 8)).demand
    known = find_profile("juwels-booster")
    boxed = replace(known, job=replace(known.job, container="apptainer exec here.sif"))
    with pytest.raises(UsageError, match="its jobs stay within a node; ask for at"):
        assert request(boxed, (1, 8)).demand
    assert request("generic-slurm", (1, 2), **{"gpus-per-node": 8}).demand.gpus_per_node == 8


def test_a_short_job_of_slurm_is_not_signalled() -> None:
    # Slurm may signal a minute early, which would end such a job before it has begun.
    assert "--signal" in job_script(request("juwels-booster", (1, 4)))
    assert "--signal" not in job_script(request("juwels-booster", (1, 4), time="00:02:00"))


def test_pbs_is_asked_for_whole_nodes_or_none_of_its_gpus() -> None:
    known = find_profile("generic-pbs")
    alone = replace(known, node=GpuNodes(gpus=4, whole=True))
    found = directives(job_script(request(alone, (1, 2))))
    assert {"-l select=1:ncpus=4:ngpus=4:mpiprocs=1", "-l place=scatter:excl"} <= set(found)
    without = replace(known, node=GpuNodes(gpus=4, cores=64), job=replace(known.job, gpu_option=""))
    assert "-l select=1:ncpus=32:mpiprocs=1" in directives(job_script(request(without, (1, 2))))


def test_a_job_without_gpus_to_ask_for_asks_for_none() -> None:
    known = find_profile("generic-slurm")
    cpu = replace(known, node=GpuNodes(gpus=2), job=replace(known.job, gpu_option=""))
    assert not [line for line in directives(job_script(request(cpu, (1, 2)))) if "gpu:" in line]


def test_values_of_the_profile_reach_the_shell_as_they_are(tmp_path: Path) -> None:
    nasty = "a b\"$(touch broken)'c"
    known = find_profile("generic-slurm")
    job = replace(known.job, variables={"NASTY": nasty})
    script = job_script(request(replace(known, node=GpuNodes(gpus=1), job=job), (1,)))
    (line,) = re.findall(r"^export NASTY=.*$", script, re.MULTILINE)
    words = ["bash", "-c", f'{line}; printf %s "$NASTY"']
    assert subprocess.check_output(words, cwd=tmp_path, text=True) == nasty
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpus", "1,x"], "--gpus: 'x' is not a whole number"),
        (["--gpus", "1", "--runs", "0"], "--runs: "),
        (["--gpus", "1", "--time", "1h"], "--time: expected a time such as 01:00:00"),
        (["--gpus", "1", "--account", "a b"], "it goes into a shell script"),
        (["--gpus", "1", "--modules", "gcc $(x)"], "it goes into a shell script"),
        (["--gpus", "8"], "so nothing would be judged"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: list[str], message: str) -> None:
    command = ("submit", "juwels-booster", "--print", *options)
    assert message in refusal(*command, cwd=REPOSITORY)


@pytest.mark.parametrize("given", [(), ("--gpus-per-node", "2"), ("--gpus", "1,2")])
def test_all_options_a_profile_needs_are_named_at_once(given: Sequence[str]) -> None:
    said = refusal("submit", "generic-slurm", "--print", *given)
    problem = "the profile generic-slurm leaves open on how many GPUs to measure, or how many a"
    assert said.startswith(f"gpuscale: {problem} node has; add what it lacks, for example --gpus ")


def test_only_what_the_published_baseline_knows_is_judged() -> None:
    for more, judged in (
        ((), "compare baselines/juwels-booster.json --case resnet50/ddp --gpus 1,4\n"),
        (("--baseline", "b.json"), "compare b.json --case resnet50/ddp --gpus 1,4,8\n"),
    ):
        command = ("submit", "juwels-booster", "--gpus", "1,4,8", "--print", *more)
        assert judged in gpuscale(*command, cwd=REPOSITORY).stdout


@pytest.mark.parametrize(
    ("scheduler", "said", "number"),
    [
        ("slurm", "4711\n", "4711"),
        ("slurm", "4711;booster\n", "4711"),
        ("sge", "4711\n", "4711"),
        ("lsf", "Job <4711> is submitted to queue <waic-short>.\n", "4711"),
        ("pbs", "4711.pbs01\n", "4711.pbs01"),
    ],
)
def test_a_scheduler_says_the_number_of_a_job(scheduler: str, said: str, number: str) -> None:
    asked = SCHEDULERS[scheduler]
    assert asked.job_id_in(f"a greeting of the site\n{said}") == number
    with pytest.raises(SchedulerError, match="no job number"):
        asked.job_id_in("nothing of use")


# What a scheduler answers, how far the job is, and with what the night ends if it has ended.
SLURM_STATES = (
    ("RUNNING COMPLETING RESIZING", "3:0", "running", None),
    ("PENDING REQUEUE_FED RESV_DEL_HOLD SPECIAL_EXIT", "0:0", "waiting", None),
    ("POWER_UP_NODE A_WORD_TO_COME", "0:0", "waiting", None),
    ("COMPLETED", "0:0", "ended", 0),
    ("REVOKED FAILED CANCELLED", "0:0", "ended", 2),
    ("FAILED", "1:0", "ended", 1),
    ("FAILED", "6:0", "ended", 6),
    ("FAILED", "7:0", "ended", 2),
    ("TIMEOUT DEADLINE", "0:15", "ended", 5),
    ("NODE_FAIL BOOT_FAIL LAUNCH_FAILED RECONFIG_FAIL", "0:0", "ended", 6),
    ("OUT_OF_MEMORY PREEMPTED", "0:0", "ended", 6),
)
GONE = "Following jobs do not exist: \n4711"
TASK_OF_9_S, TASK_OF_8_S, JOB_OF_12_S = (
    f"{'=' * 62}\ngranted_pe   mpi\nfailed       0\nexit_status  {status}\nru_wallclock {lasted}s\n"
    for status, lasted in ((0, 9), (0, 8), (3, 12))
)
STATES = [
    *(
        ("slurm", [f"JobId=1 JobState={word} Reason=None ExitCode={code}"], stage, night)
        for words, code, stage, night in SLURM_STATES
        for word in words.split()
    ),
    ("slurm", ["", "COMPLETED|0:0\n"], "ended", 0),
    ("slurm", ["", "CANCELLED by 1000|0:9\n"], "ended", 2),
    ("slurm", [""], "unknown", None),
    ("sge", ["job_number: 1\n"], "waiting", None),
    ("sge", ["job_number: 1\nusage    1:  cpu=00:00:01\n"], "running", None),
    ("sge", [GONE, "failed       0    \nexit_status  0                   \n"], "ended", 0),
    ("sge", [GONE, "failed       0    \nexit_status  3                   \n"], "ended", 3),
    ("sge", [GONE, "failed       100 : assumedly after job\nexit_status  137\n"], "ended", 2),
    ("sge", [GONE, "failed       100 : assumedly after job\nexit_status  0\n"], "ended", 2),
    ("sge", [GONE, "failed       1 : before writing config\nexit_status  0\n"], "ended", 2),
    ("sge", [GONE, "failed       37  : qmaster enforced h_rt\nexit_status  137\n"], "ended", 5),
    ("sge", ["job_number: 1\nerror reason    1:      can't chdir to /x\n"], "ended", 2),
    ("sge", [GONE, ""], "unknown", None),
    ("sge", ["error: commlib error", "failed  0\nexit_status  0\n"], "unknown", None),
    ("sge", [GONE, f"{TASK_OF_9_S}{JOB_OF_12_S}"], "ended", 3),
    ("sge", [GONE, f"{TASK_OF_9_S}{TASK_OF_8_S}"], "unknown", None),
    ("lsf", ["PEND:-\n"], "waiting", None),
    ("lsf", ["RUN:-\n"], "running", None),
    ("lsf", ["DONE:-\n"], "ended", 0),
    ("lsf", ["EXIT:3\n"], "ended", 3),
    ("lsf", ["EXIT:0\n"], "ended", 2),
    ("lsf", ["UNKWN:-\n"], "unknown", None),
    ("lsf", [""], "unknown", None),
    ("pbs", ["Job Id: 1.s\n    job_state = Q\n"], "waiting", None),
    ("pbs", ["Job Id: 1.s\n    job_state = R\n"], "running", None),
    ("pbs", ["", "Job Id: 1.s\n    job_state = E\n"], "running", None),
    ("pbs", ["Job Id: 1.s\n    job_state = F\n    Exit_status = 0\n"], "ended", 0),
    ("pbs", ["Job Id: 1.s\n    job_state = F\n    Exit_status = 3\n"], "ended", 3),
    ("pbs", ["Job Id: 1.s\n    job_state = F\n    Exit_status = -29\n"], "ended", 5),
    ("pbs", ["Job Id: 1.s\n    job_state = F\n    Exit_status = -27\n"], "ended", 6),
    ("pbs", ["Job Id: 1.s\n    job_state = F\n    Exit_status = 271\n"], "ended", 2),
    ("pbs", ["Job Id: 1.s\n    job_state = F\n"], "ended", 2),
    ("pbs", ["", ""], "unknown", None),
]


@pytest.mark.parametrize(("scheduler", "answers", "stage", "code"), STATES)
def test_how_a_job_ended_is_read_from_what_its_scheduler_says_and_only_well_gives_0(
    scheduler: str, answers: list[str], stage: str, code: int | None
) -> None:
    state = SCHEDULERS[scheduler].read_state(answers)
    assert state.stage == stage
    if code is not None:
        assert job_exit(state)[0] == code


def test_a_job_knows_its_scheduler_by_the_variables_that_are_set() -> None:
    for scheduler in SCHEDULERS.values():
        inside = {scheduler.job_variable: "1", "SGE_TASK_ID": "undefined"}
        assert scheduler_of_job(inside) is scheduler
    assert scheduler_of_job({"JOB_ID": "1"}) is None


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of a site, as far as `gpuscale submit` looks at one."""
    root = tmp_path / "site"
    shutil.copytree(REPOSITORY / "baselines", root / "baselines")
    for name in ("test_mnist_cnn.py", "test_resnet50.py"):
        (root / "bench_cases").mkdir(exist_ok=True)
        (root / "bench_cases" / name).touch()
    return root


def with_programs(site: Path, **programs: str) -> dict[str, str]:
    """An environment with stand-ins for a scheduler's commands, which note how they are called."""
    for name, body in programs.items():
        note = f'printf "%s\\n" "{name} $*" >>"{site}/calls"'
        write_program(site / "bin" / name, f"#!/bin/bash\n{note}\n{body}\n")
    return {"PATH": f"{site}/bin:/usr/bin:/bin"}


def test_nothing_is_submitted_that_nobody_agreed_to(site: Path) -> None:
    environment = with_programs(site, qsub="echo 4711")
    answer = gpuscale("submit", "arc4", cwd=site, variables=environment)
    assert answer.returncode == 2
    assert "ARC4, University of Leeds: 9 runs on 1, 2 and 4 GPUs, 1 node with 4" in answer.stdout
    assert "estimate: 7 min 45 s of the 60 min 0 s that the time limit allows" in answer.stdout
    assert "cannot ask for confirmation without a terminal; add --yes" in answer.stderr
    assert not (site / "calls").exists()


def test_a_job_of_grid_engine_is_handed_over_and_followed_to_its_exit_code(site: Path) -> None:
    # SGE cannot run here: these stand-ins answer as its commands do.
    environment = with_programs(
        site,
        qsub='cat "${@: -1}" >submitted; echo "a log" >gpuscale-arc4-4711.log; echo 4711',
        qstat='if [ -e asked ]; then echo "Following jobs do not exist: 4711" >&2; exit 1; fi\n'
        'touch asked; printf "job_number: 4711\\nusage    1: cpu=1\\n"',
        qacct='printf "failed       0\\nexit_status  1\\n"',
    )
    answer = gpuscale("submit", "arc4", "--yes", "--wait", cwd=site, variables=environment)
    assert answer.returncode == 1, answer.stderr
    (written,) = (site / ".gpuscale/jobs").iterdir()
    assert (site / "submitted").read_text() == written.read_text()
    calls = (site / "calls").read_text()
    # Where this environment has gpuscale installed, the job of a folder without one is told so.
    place = re.escape(str(written.relative_to(site)))
    assert re.match(rf"qsub -terse (-v GPUSCALE_VENV )?{place}\n", calls)
    told = {"GPUSCALE_VENV": "/venv", "GPUSCALE_DATA_ROOT": "/data"}
    gpuscale("submit", "arc4", "--yes", cwd=site, variables=environment | told)
    again = (site / "calls").read_text().removeprefix(calls)
    assert again.startswith("qsub -terse -v GPUSCALE_DATA_ROOT,GPUSCALE_VENV .gpuscale/jobs/")
    assert "a log\n" in answer.stdout
    assert "job 4711 ended as done: regressed" in answer.stdout


def test_a_parallel_job_has_a_last_record(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([TASK_OF_9_S, f"{TASK_OF_9_S}{JOB_OF_12_S}"])

    class Accounted(Sge):
        def state_of(self, job: str) -> JobState:
            return self.read_state([GONE, next(answers)])

    monkeypatch.setattr(base, "_SETTLING_S", 0.0)
    *_, last = Accounted().states_of("4711")
    assert last.exit_code == 3


def test_a_job_that_stays_unknown_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Forgetful(Sge):
        def state_of(self, job: str) -> JobState:
            return base.UNKNOWN

    monkeypatch.setattr(base, "_SHORTEST_PAUSE_S", 0.0)
    with pytest.raises(SchedulerError, match="no longer knows job 4711"):
        submit._wait(Forgetful(), "4711", tmp_path / "log")


def test_a_job_of_pbs_is_handed_over_and_followed_to_its_exit_code(site: Path) -> None:
    environment = with_programs(
        site,
        qsub='cat "${@: -1}" >submitted; echo "a log" >gpuscale-generic-pbs.o4711; echo 4711.pbs',
        qstat='printf "Job Id: 4711.pbs\\n    job_state = F\\n    Exit_status = -29\\n"',
    ) | {"GPUSCALE_VENV": "/venv"}
    arguments = ("generic-pbs", "--gpus", "1,2", "--gpus-per-node", "2", "--yes", "--wait")
    answer = gpuscale("submit", *arguments, cwd=site, variables=environment)
    assert answer.returncode == 5, answer.stderr
    assert "#PBS -N gpuscale-generic-pbs" in (site / "submitted").read_text()
    calls = (site / "calls").read_text().splitlines()
    assert calls[0].startswith("qsub -v GPUSCALE_VENV .gpuscale/jobs/generic-pbs-")
    assert calls[1] == "qstat -x -f 4711.pbs"
    assert "a log\n" in answer.stdout
    assert "its time was up" in answer.stdout


def test_what_the_scheduler_says_against_a_job_is_passed_on(site: Path) -> None:
    refused = 'printf "sbatch: error: invalid account\\nsbatch: error: no job\\n" >&2; exit 1'
    environment = with_programs(site, sbatch=refused)
    answer = gpuscale("submit", "juwels-booster", "--yes", cwd=site, variables=environment)
    assert answer.returncode == 2
    assert answer.stderr.startswith(
        "gpuscale: sbatch refused the job:\n    sbatch: error: invalid account\n"
        "    sbatch: error: no job\n    correct what it names by an option such as --partition"
    )
    assert list((site / ".gpuscale/jobs").iterdir()) == []
    assert "or submit from a login node of the cluster" in answer.stderr
    (site / "bin/sbatch").unlink()
    absent = {"PATH": f"{site}/bin"}
    said = refusal("submit", "juwels-booster", "--yes", cwd=site, variables=absent)
    assert "sbatch is not here; submit from a login node" in said


def test_what_is_not_there_is_told_before_anything_is_submitted(site: Path) -> None:
    environment = with_programs(site, qsub="echo 4711")
    (site / "broken.json").write_text("{")
    for options, problem in (
        (("--baseline", "none.json"), "none.json: No such file or directory"),
        (("--baseline", "broken.json"), "broken.json"),
        (("--cases", "my_cases other"), "not here: my_cases, other; submit from"),
    ):
        said = refusal("submit", "arc4", "--yes", *options, cwd=site, variables=environment)
        assert problem in said
        # Printed, a script may be for a folder elsewhere.
        printed = gpuscale("submit", "arc4", "--print", *options, cwd=site, variables=environment)
        assert (printed.returncode, printed.stdout[:2]) == (0, "#!"), printed.stderr
        assert printed.stderr == f"{said}\n".replace("gpuscale:", "gpuscale: beware:", 1)
    (site / "bench_cases").rename(site / "my_cases")
    answer = gpuscale("submit", "arc4", "--yes", cwd=site, variables=environment)
    assert "not here: bench_cases/test_mnist_cnn.py; submit" in answer.stderr
    assert not (site / "calls").exists()
    # Other cases than the profile's are not those that its baseline has.
    own = ("--cases", "my_cases", "--yes")
    answer = gpuscale("submit", "arc4", *own, cwd=site, variables=environment)
    assert (answer.returncode, "compared with nothing" in answer.stdout) == (0, True)


def test_a_job_is_pinned_to_nodes_under_slurm_and_refused_elsewhere() -> None:
    nodes = "nid[0102,0417]"
    pinned = job_script(request("juwels-booster", (1, 2), nodelist=nodes))
    assert f"--nodelist={nodes}" in directives(pinned)
    assert "--nodelist" not in job_script(request("juwels-booster", (1, 2)))
    with pytest.raises(UsageError, match=r"--nodelist: .* under Slurm only"):
        assert request("arc4", (1, 2), nodelist=nodes).demand
