"""`gpuscale run`, and a command as a case under pytest, as a user types them."""

import re
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from command_line import refusal
from commands import PRELUDE
from measuring import REPOSITORY, command_case, run_gpuscale, run_pytest
from statements import known

from gpuscale.base.errors import CaseError
from gpuscale.base.text import joined
from gpuscale.cli.run import name_of_command
from gpuscale.plugin.items import ItemPlan, skip_reason
from gpuscale.plugin.options import parse_options
from gpuscale.records import Environment, GpuDevice, Node
from gpuscale.store.results import read_results
from gpuscale.workload.command_case import CommandCase, filled, validate_scaling

PYTHON = sys.executable
RANKS_OF_TORCH = (PYTHON, "-m", "torch.distributed.run")
QUICK = ("--device", "cpu", "--run-seconds", "0.5")
FOREVER = "steps(range(10**6))\n"


def script(folder: Path, text: str, name: str = "train.py") -> str:
    path = folder / name
    path.write_text(PRELUDE + text)
    return str(path)


@pytest.mark.parametrize(("own", "numbers"), [(None, [1, 2]), ("3", [2])])
def test_ranks_of_torchrun_have_as_many_threads_on_any_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None, numbers: list[int]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if own is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", own)
    path = script(tmp_path, f"assert os.environ['OMP_NUM_THREADS'] == '{own or 1}'\n" + FOREVER)
    starter = (*RANKS_OF_TORCH, "--master-port", "{master_port}", "--nproc-per-node", "{gpus}")
    asked = ("--gpus", ",".join(map(str, numbers)), "--runs", "1", "--batch", "8", *QUICK)
    options = (*asked, "--results", "r.jsonl", "--oversubscribe")
    done = run_gpuscale(tmp_path, "run", *options, "--", *starter, path).ended()
    results = read_results(tmp_path / "r.jsonl")
    assert [run.gpus for run in results.runs if run.is_valid] == numbers
    assert [*results.environment.scripts] == [path]
    assert f"OMP_NUM_THREADS={own or 1} unless" in done.output
    assert "thread a rank" not in done.output


CASE = command_case("Train", f"{sys.executable} train.py", batch=8)


@pytest.mark.thorough
def test_the_script_of_the_walk_through_is_measured(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs/commands.md").read_text("utf-8")
    blocks: list[str] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (text,) = (block for block in blocks if "dist" in block)
    path = script(tmp_path, text.replace("sleep(0.04)", "sleep(0.01)"))
    asked = ("--gpus", "1", "--runs", "1", "--batch", "64", *QUICK)
    ranks = (*RANKS_OF_TORCH, "--nproc-per-node", "{gpus}", path)
    done = run_gpuscale(tmp_path, "run", *asked, "--", *ranks).ended()
    (run,) = done.results.runs
    assert run.is_valid
    assert done.results.started_as == joined(("gpuscale", "run", *asked, "--", *ranks))


def test_a_silent_script_is_waited_for_twice(tmp_path: Path) -> None:
    (tmp_path / "test_train.py").write_text(CASE)
    script(tmp_path, "time.sleep(999)\n")
    asked = ("--gpus", "1", "--runs", "4", "--timeout", "3", *QUICK)
    done = run_pytest(tmp_path, "test_train.py", *asked).ended(1)
    assert len(re.findall(r"^test_train.py::test_train\[.*\] FAILED", done.output, re.M)) == 2
    assert "2 more runs left out, since they would fail in the same way" in done.output


def test_a_script_that_says_no_batch_is_started_twice(tmp_path: Path) -> None:
    asked = ("--gpus", "1,2", "--oversubscribe", "--launch", "per-rank", *QUICK)
    path = script(tmp_path, FOREVER)
    done = run_gpuscale(tmp_path, "run", *asked, "--", sys.executable, path).ended(1)
    assert "does not print how many samples a step has; give --batch N" in done.output
    assert "4 more runs left out, since they would fail in the same way" in done.output


def test_options_of_our_own_training_leave_commands_out(tmp_path: Path) -> None:
    class Train(CommandCase):
        command = "python"

    plan = ItemPlan(case=Train, strategy="command", gpus=1, run=1)
    here = Environment(device="cpu", cpu_count=2)
    assert skip_reason(plan, here, parse_options({"gpus": "1", "batch": "8"})) is None
    reason = skip_reason(plan, here, parse_options({"gpus": "1", "precision": "bf16"}))
    assert "--precision" in known(reason)
    # Of a job, which has cases of both kinds.
    of_all = parse_options({"gpus": "1", "size": "full", "data_root": str(tmp_path)})
    assert skip_reason(plan, here, of_all) is None


MISTYPED = str(REPOSITORY / "ci/gpu_chek.py")
TWO_BATCHES = ("--batch", "8", "--samples-per-step", "8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--", PYTHON], "--gpus 1,2"),
        (["--gpus", "1"], "gpuscale: there is no command; give one after --"),
        (["--gpus", "1", "--samples-per-step", "0", "--", PYTHON], "(--samples-per-step) is 0"),
        (["--gpus", "1", "--", PYTHON, "{gpu}"], "there is no placeholder {gpu}"),
        (["--gpus", "1", "--", PYTHON, "{batch}"], "{batch} has no value"),
        (["--gpus", "1", "--", PYTHON, '{"a": 1}'], "write {{ and }}"),
        (["--gpus", "1", "--launch", "once", "--", PYTHON, "{node_rank}"], "first node only"),
        (["--gpus", "1,2", "--samples-per-step", "3", "--", PYTHON], "divided among 2 GPUs"),
        (["--gpus", "1", "--", __file__], "make it executable"),
        (["--gpus", "1", "--batch", "8,16", "--", PYTHON], "write {batch} where"),
        (["--gpus", "1", "--", *RANKS_OF_TORCH, MISTYPED], "gpu_chek.py (did you mean 'gpu_check"),
        # The same on each number of GPUs.
        (
            ["--gpus", "1,2", "--", *RANKS_OF_TORCH, "--nproc-per-node", "2"],
            "of ranks; write {gpus}",
        ),
        (["--gpus", "1,2", "--device", "cpu", "--", PYTHON], "different numbers of ranks"),
        (["--gpus", "1", "--name", "x" * 300, "--", PYTHON], "1 to 200 characters"),
        (["--gpus", "1", "--log-format", "tqmd", "--", PYTHON], "did you mean 'tqdm'?); choose "),
        (["--gpus", "1", "--step-regex", "x", "--", PYTHON], "no group named step"),
        (["--gpus", "1", "--", "sh", "-c", "make train | tee log"], "give the case a --name"),
        (["--gpus", "1", *TWO_BATCHES, "--", PYTHON], "leave out one"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(arguments: list[str], said: str) -> None:
    assert said in refusal("run", *arguments)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("sh", "-c", "torchrun --nproc-per-node {gpus} my/train.py --lr 1 | tee log"), "train"),
        (("bash", "-lc", "cd my; (python 'train.py')"), "train"),
        (("bash", "train.sh"), "train"),
        (("./simulate", "--steps", "9"), "simulate"),
    ],
)
def test_a_command_is_named_by_what_it_runs(words: tuple[str, ...], name: str) -> None:
    assert name_of_command(words) == name


TORCHRUN = "torchrun --nnodes {nodes} --nproc-per-node {gpus_per_node} train.py"


@pytest.mark.parametrize(
    ("typed", "launch", "across", "on_one_node"),
    [
        (TORCHRUN, "plain", "per-node", "once"),
        (f"sh -c 'cd my; {TORCHRUN}'", "plain", "per-node", "once"),
        ("python -m torch.distributed.run train.py", "plain", "per-node", "once"),
        ("python -m torch.distributed.launch train.py", "plain", "per-node", "once"),
        ("accelerate launch train.py", "plain", "per-node", "once"),
        ("python train.py", "plain", "per-rank", "once"),
        ("python train.py", "torchrun", "per-rank", "per-rank"),
        ("python train.py", "per-node", "per-node", "per-node"),
        (f"srun {TORCHRUN}", "once", "once", "once"),
        # Ranks would be started by both, so that there were more than were asked for.
        (TORCHRUN, "torchrun", "--launch per-node", "per-rank"),
        (f"srun {TORCHRUN}", "plain", "--launch once", "once"),
        ("deepspeed train.py", "per-node", "--launch once", "per-node"),
    ],
)
def test_commands_start_as_needed(typed: str, launch: str, across: str, on_one_node: str) -> None:
    attributes = {"command": typed, "launch": launch}
    case: type[CommandCase] = type("Train", (CommandCase,), attributes)
    assert case.launch_of(across_nodes=False) == on_one_node
    if across.startswith("--"):
        with pytest.raises(CaseError, match=across):
            case.launch_of(across_nodes=True)
    else:
        assert case.launch_of(across_nodes=True) == across


ON_ONE_NODE = [
    ("torchrun --nproc-per-node {gpus} train.py", "plain", True, False),
    ("torchrun --nproc_per_node=2 train.py", "plain", True, True),
    ("torchrun --nproc-per-node=gpu train.py", "plain", True, False),
    ("torchrun --nproc-per-node gpu train.py", "plain", False, True),
    ("torchrun train.py --device gpu", "plain", True, True),
    ("sh -c 'torchrun --nproc-per-node 2 train.py | tee log'", "plain", True, True),
    ("sh -c 'torchrun --nproc-per-node {gpus} train.py | tee log'", "plain", True, False),
    ("mpirun -n 2 python train.py", "plain", True, True),
    # These take all GPUs that they see, unless they are given a number.
    ("accelerate launch train.py", "plain", True, False),
    ("accelerate launch --num-processes 2 train.py", "plain", True, True),
    ("deepspeed --num_gpus=2 train.py", "plain", True, True),
    # A script may take the GPUs that it sees. On CPU ranks nothing tells it how many to start.
    ("python train.py", "plain", True, False),
    ("python train.py", "plain", False, True),
    ("python train.py", "torchrun", False, False),
]
ACROSS_NODES = [
    (TORCHRUN, "plain", True, False),
    # On the second node it would start all four ranks once more.
    ("torchrun --nproc-per-node {gpus} train.py", "plain", True, True),
    ("torchrun --nnodes {nodes} --nproc-per-node 2 train.py", "plain", True, True),
    ("torchrun --nnodes {nodes} --nproc-per-node gpu train.py", "plain", True, False),
    ("torchrun --nnodes {nodes} --nproc-per-node gpu train.py", "plain", False, True),
    ("accelerate launch --num_machines {nodes} --num_processes {gpus}", "plain", True, False),
    ("accelerate launch --num_processes {gpus} train.py", "plain", True, True),
    ("srun -n {gpus} python train.py", "once", True, False),
    ("mpirun --hostfile {hostfile} python train.py", "once", True, False),
    ("bash job.sh", "once", True, True),
    ("bash job.sh {nodes}", "once", True, True),
    ("python train.py", "plain", True, False),
]


@pytest.mark.parametrize(
    ("nodes", "typed", "launch", "on_gpu", "refused"),
    [(number, *each) for number, of in ((0, ON_ONE_NODE), (2, ACROSS_NODES)) for each in of],
)
def test_constants_fail(nodes: int, typed: str, launch: str, on_gpu: bool, refused: bool) -> None:
    case = type("Train", (CommandCase,), {"command": typed, "launch": launch})
    gpus = tuple(GpuDevice(index=index, name="A100") for index in range(2 * on_gpu))
    found = tuple(Node(host=f"n{number}", cpu_count=2, gpus=gpus) for number in range(nodes))
    there = Environment(device="cuda" if on_gpu else "cpu", nodes=found)
    validate_scaling(case, {4}, there)
    with pytest.raises(CaseError, match="; write ") if refused else nullcontext():
        validate_scaling(case, {1, 2, 4}, there)


def test_a_command_case_without_its_number_of_gpus_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_train.py").write_text(CASE)
    (tmp_path / "train.py").write_text("open('started', 'w')\n")
    done = run_pytest(tmp_path, "test_train.py", "--gpus", "1,2", *QUICK).ended(4)
    assert "write {gpus} where it takes that number" in done.output
    assert not (tmp_path / "started").exists()


def test_words_with_blanks_and_braces_stay_words() -> None:
    words = ["python", "a b.py", "{gpus}", "{{}}", "it's"]

    class Quoted(CommandCase):
        command = joined(words)

    assert list(Quoted.words()) == words
    assert filled(words, {"gpus": 4}) == ["python", "a b.py", "4", "{}", "it's"]
