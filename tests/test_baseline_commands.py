"""`gpuscale baseline` as a user types it: recorded, shown, compared, changed, imported."""

import math
import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from builders import environment, measured, results_text
from changing import replace
from command_line import gpuscale, refusal

from gpuscale.records import HostLoad, NodeEvidence, Results
from gpuscale.store.files import read_baseline

ONE_AND_TWO = {1: (1.0, 1.001, 0.999) * 2, 2: (1.1, 1.102, 1.098) * 2}
SLOWER = {1: (1.0, 1.002, 0.998) * 2, 2: (1.3, 1.303, 1.297) * 2}


class Shell:
    """Runs commands in a folder with results of two nights in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("night", measured(ONE_AND_TWO, job_id="17"))
        self.write("later", measured(SLOWER, job_id="18"))

    def write(self, name: str, results: Results) -> Path:
        path = self.folder / f"{name}.jsonl"
        started = 1.7e9 + len(list(self.folder.iterdir())) * 86400
        runs = tuple(replace(run, started_at_s=started) for run in results.runs)
        path.write_text(results_text(replace(results, runs=runs)))
        return path

    def __call__(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return gpuscale(*arguments, cwd=self.folder)

    def record(self, *names: str) -> "subprocess.CompletedProcess[str]":
        files = [f"{name}.jsonl" for name in names]
        return self("baseline", "record", *files, "--cluster", "Here", "-o", "b.json")

    def recorded(self) -> Path:
        answer = self.record("night")
        assert answer.returncode == 0, answer.stderr
        return self.folder / "b.json"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path)


def test_runs_of_two_versions_of_a_script_are_not_taken_together_unseen(shell: Shell) -> None:
    for job, digest in (("one", "0a"), ("two", "1b")):
        made = measured({1: [0.1, 0.101, 0.099]}, job_id=job)
        where = replace(made.environment, scripts={"a.py": digest})
        shell.write(job, replace(made, environment=where))
    told = "beware: taken together, though they differ: script a.py 0a → 1b\n"
    assert told in shell.record("one", "two").stderr
    assert told not in shell("compare", "one.jsonl", "two.jsonl").stderr
    assert told in shell("compare", "b.json", "one.jsonl", "two.jsonl").stderr


def test_a_baseline_grows_by_the_figure_that_it_was_recorded_with(shell: Shell) -> None:
    draw = random.Random(4)
    for name, runs in (("well", 30), ("one", 3), ("two", 4)):
        times = {n: [math.exp(draw.gauss(0, 0.1)) for _ in range(runs)] for n in (1, 2)}
        shell.write(name, measured(times, job_id=name))
    recorded = shell.record("well")
    promised = re.compile(r"one session of 30 runs a row would find 19 times in 20: ([^;\n]+)")
    (of_recorded,) = promised.findall(recorded.stdout)
    known = [of_recorded]
    for name in ("one", "two"):
        grown = shell("baseline", "update", "b.json", f"{name}.jsonl", "--add").stdout
        assert f"; before: {known[-1]}\nnext  measure at" in grown
        known += promised.findall(grown)
    assert len(known) == 3


def test_a_night_far_from_the_others_is_named_while_recording(shell: Shell) -> None:
    for night in range(8):
        step_s = 0.118 if night == 5 else 0.1 + night * 1e-4
        times = {1: [step_s, step_s * 1.003, step_s * 0.998]}
        shell.write(f"of{night}", measured(times, job_id=f"job{night}"))
    said = shell.record(*(f"of{night}" for night in range(8))).stdout
    assert "note: left out of the baseline: job5, where T of mnist_cnn/ddp on 1 GPU dif" in said
    assert "if a fault explains it: gpuscale leave-out FILE --because TEXT" in said


def added(*names: str) -> Sequence[str]:
    return ("baseline", "update", "--add", "b.json", *(f"{name}.jsonl" for name in names))


def of_factor(factor: float, runs: int = 3) -> dict[int, Sequence[float]]:
    """Runs that differ by 0.2%; those on 2 GPUs take longer by a factor."""
    times = (1.0, 1.002, 0.998)[:runs]
    return {1: times, 2: [1.1 * factor * each for each in times]}


def test_a_baseline_grows_by_nights_and_each_run_counts_once(shell: Shell) -> None:
    path = shell.recorded()
    before = read_baseline(path)
    shell.write("second", measured(of_factor(1.001), job_id="18"))
    shell.write("third", measured(of_factor(0.999), job_id="19"))
    repeated = "gpuscale: left out: 12 repeated runs; each counts once\n"
    answer = shell(*added("night"))
    assert (answer.stdout, answer.stderr) == ("nothing would change\n", repeated)
    answer = shell(*added("night", "second", "third"), "--reason", "more\nnights")
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == repeated
    assert "6 runs in 1 session → 12 runs in 3 sessions" in answer.stdout
    after = read_baseline(path)
    assert after.cluster == "Here"
    assert all(run in after.runs for run in before.runs)
    assert [*after.environments] == ["17", "18", "19"]
    (change,) = after.history
    assert (change.reason, change.replaced) == ("more nights: 12 runs added, of 18, 19", ())
    last = shell.write("last", measured(of_factor(1.0), job_id="20"))
    compared = " ".join(shell("compare", "b.json", str(last)).stdout.split())
    assert "jobs 17, 18, 19, 12 runs a row" in compared, compared
    assert shell(*added("second")).stdout.endswith("nothing would change\n")
    assert read_baseline(path) == after


def test_a_night_that_changed_is_not_added_unasked_even_beside_good_ones(shell: Shell) -> None:
    path = shell.recorded()
    before = path.read_bytes()
    for number, factor in enumerate((1.0, 1.0, 1.12, 1.0, 1.12), start=20):
        shell.write(f"n{number}", measured(of_factor(factor), job_id=str(number)))
    answer = shell(*added("n20", "n21", "n22", "n23"))
    assert answer.returncode == 3
    assert "mnist_cnn/ddp on 2 GPUs regressed in 22: not added, since" in answer.stdout
    assert "written\nnext  if nothing was changed, sessions of this machine" in answer.stdout
    assert path.read_bytes() == before
    assert shell(*added("n20", "n21", "n23")).returncode == 0
    assert shell(*added("n22"), "--accept", "all").returncode == 2
    # Beside three nights at the old level, it leaves one night little to find.
    approved = shell(*added("n22"), "--accept", "all", "--reason", "new NCCL")
    assert approved.returncode == 0, approved.stderr
    assert "23 % (mnist_cnn/ddp on 2 GPUs)" in approved.stdout
    assert "show that runs or sessions differ more than it seemed" in approved.stdout
    assert shell(*added("n24")).returncode == 0
    assert len(read_baseline(path).history) == 3


def test_the_number_of_runs_that_is_advised_is_that_of_a_session_not_of_all(shell: Shell) -> None:
    draw = random.Random(6)
    for name in "abcd":
        times = {1: [math.exp(draw.gauss(0, 0.1)) for _ in range(8)]}
        shell.write(name, measured(times, job_id=name))
    names = [f"{name}.jsonl" for name in "abcd"]
    record = shell("baseline", "record", *names, "--cluster", "Here", "-o", "b.json", "--weak")
    assert "one session of 8 runs a row would find" in record.stdout


def test_a_short_night_may_be_added_though_its_like_would_find_less(shell: Shell) -> None:
    times = (1.0, 1.06, 0.94, 1.05, 0.95, 1.04, 0.96, 1.03, 0.97, 1.02, 0.98, 1.01)
    shell.write("long", measured({1: times}, job_id="40"))
    record = shell("baseline", "record", "long.jsonl", "--cluster", "Here", "-o", "b.json")
    assert record.returncode == 0, record.stderr
    shell.write("short", measured({1: (0.93, 1.0, 1.07)}, job_id="41"))
    answer = shell(*added("short"))
    assert answer.returncode == 0, answer.stderr
    assert "one session of 12 runs a row would find" in answer.stdout


def test_what_is_no_more_of_the_same_rows_is_not_added(shell: Shell) -> None:
    path = shell.recorded()
    before = path.read_bytes()
    shell.write("new", measured({1: (1.0,), 2: (1.1,), 4: (0.6, 0.601, 0.602)}, job_id="30"))
    halved = measured(of_factor(1.0), job_id="31")
    half = [replace(run, batch_per_gpu=64) for run in halved.runs]
    shell.write("half", replace(halved, runs=tuple(half)))
    shell.write("other", replace(halved, environment=environment("NVIDIA A100-SXM4")))
    shell.write("faulty", replace(halved, injections=("data=5ms",)))
    for name, why in (
        ("half", "not the same measurement"),
        ("other", "A100"),
        ("faulty", "on purpose"),
    ):
        assert why in refusal(*added(name))
    assert path.read_bytes() == before
    answer = shell(*added("new"))
    assert answer.returncode == 3
    assert "2 of 3 changes written" in answer.stdout
    assert {run.gpus for run in read_baseline(path).runs} == {1, 2}
    assert shell(*added("new"), "--accept", "mnist_cnn@4", "--reason", "r").returncode == 0
    assert {run.gpus for run in read_baseline(path).runs} == {1, 2, 4}


def test_a_baseline_too_weak_to_find_losses_is_not_written_unasked(shell: Shell) -> None:
    noisy = measured({1: (1.0, 1.15, 0.9), 2: (1.1, 1.2, 1.0)}, job_id="1")
    busy = NodeEvidence(host="node1", load=HostLoad(other_cores=1.7, cores=2))
    runs = tuple(replace(run, nodes=(busy,)) for run in noisy.runs)
    shell.write("noisy", replace(noisy, runs=runs))
    command = ("baseline", "record", "noisy.jsonl", "--cluster", "Here", "-o", "a/new/b.json")
    answer = shell(*command)
    assert (answer.returncode, (shell.folder / "a").exists()) == (2, False)
    assert max(map(len, answer.stderr.splitlines())) <= 100
    waiting = "busy host (1.7 of 2 cores used by others); measure into a new file, while"
    assert waiting in " ".join(answer.stderr.split())
    assert shell(*command, "--weak").returncode == 0
    assert len(read_baseline(shell.folder / "a" / "new" / "b.json").runs) == 6
    shell.write("noisy", noisy)
    ((most, fewest, asked),) = re.findall(
        r"make (\d+) runs a row \(about \d+ min; (\d+) may do\), .* "
        r"run pytest … --runs (\d+) --resume noisy.jsonl",
        " ".join(shell(*command[:-1], "c.json").stderr.split()),
    )
    # Three runs often show too small a deviation.
    assert 10 < int(fewest) < int(most) == int(asked)
    # With a second session, others are asked for by a pattern that has that one.
    shell.write("noisy-more-1", measured({1: (1.1, 1.0, 0.8), 2: (1.2, 1.3, 1.1)}, job_id="2"))
    both = (*command[:3], "noisy-more-1.jsonl", *command[3:-1], "c.json")
    assert " record noisy.jsonl noisy-more-*.jsonl --cluster" in " ".join(
        shell(*both).stderr.split()
    )


def test_a_baseline_that_is_younger_than_the_results_is_given_second(shell: Shell) -> None:
    shell.recorded()
    earlier = measured(SLOWER, job_id="16")
    runs = tuple(replace(run, started_at_s=1.6e9) for run in earlier.runs)
    (shell.folder / "earlier.jsonl").write_text(results_text(replace(earlier, runs=runs)))
    advised = shell("compare", "b.json", "earlier.jsonl").stdout
    assert "give the earlier results first" in " ".join(advised.split())
    answer = shell("compare", "earlier.jsonl", "b.json")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "now     b.json: node1" in answer.stdout
    assert shell("compare", "b.json", "b.json").returncode == 2
    baselines = Path(__file__).parent.parent / "baselines"
    published = str(next(baselines.glob("*.json")))
    assert "has no measured runs; give it first" in refusal("compare", "earlier.jsonl", published)


def test_a_baseline_is_too_weak_if_one_night_finds_little_whatever_all_would(shell: Shell) -> None:
    for number, slow in enumerate((1.0, 1.08, 0.92, 1.06, 0.94, 1.02)):
        times = {1: [slow * step_s for step_s in (0.1, 0.101, 0.099)]}
        shell.write(f"n{number}", measured(times, job_id=f"n{number}"))
    refused = " ".join(shell.record(*(f"n{number}" for number in range(6))).stderr.split())
    take = "next take it as it is: 6 sessions show how they differ, so further ones help slowly run"
    assert f"{take} gpuscale baseline record n0.jsonl n1.jsonl" in refused
    assert "or measure at another time, while nothing else runs run pytest … --runs" in refused
    assert not (shell.folder / "b.json").exists()
