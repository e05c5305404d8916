"""Golden outputs in tests/golden/expected, which `make golden` renews."""

import io
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from builders import nights
from builders.nights import CNN, ON_CPU, RESNET, WELL, Fault, Night, baseline_of, write_night
from changing import replace
from command_line import python
from statements import known

from gpuscale import __version__
from gpuscale.cli import main
from gpuscale.judge.baseline import proposals, revised
from gpuscale.plugin.terminal import summary_lines
from gpuscale.records import Baseline, Failure, Tolerances
from gpuscale.records.baseline import ToleranceOverride
from gpuscale.store.files import read_baseline, write_baseline

ROOT = Path(__file__).parent.parent
EXPECTED = Path(__file__).parent / "golden" / "expected"
RENEW = "GPUSCALE_RENEW_GOLDEN"


class Terminal(io.StringIO):
    """A terminal as wide as COLUMNS says."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to give commands in, as one user without settings of a site."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("LOGNAME", "operator")
    monkeypatch.setenv("TZ", "UTC")
    for name in [name for name in os.environ if name.startswith(("GPUSCALE_", "SLURM_"))]:
        if name != RENEW:
            monkeypatch.delenv(name)
    return tmp_path


def given(*arguments: str, columns: int | None = None) -> str:
    """Return a command with its output and exit code; with `columns`, on a terminal."""
    out = io.StringIO() if columns is None else Terminal()
    err = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        if columns is not None:
            patch.setenv("COLUMNS", str(columns))
        code = main(arguments)
    on = "" if columns is None else f"  (terminal of {columns} columns)"
    errors = f"standard error:\n{err.getvalue()}" if err.getvalue() else ""
    command = " ".join(f"'{word}'" if " " in word else word for word in arguments)
    return f"$ gpuscale {command}{on}\n{out.getvalue()}{errors}exit code {int(code)}\n"


def check(name: str, *texts: str) -> None:
    """Compare texts with the golden file of this name, or renew the file."""
    path, text = EXPECTED / name, "\n".join(texts)
    text = re.sub(r"\(\d+ days ago\)", "($DAYS days ago)", text.replace(__version__, "$VERSION"))
    if os.environ.get(RENEW):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.is_file(), f"{name} is not kept yet: make golden"
    assert text == path.read_text(), f"{name} is another one now: if it should be, make golden"


@dataclass(frozen=True)
class Scenario:
    """A comparison: a baseline, and what was measured later."""

    nights: Sequence[Night]
    baseline: Callable[[], Baseline] = lambda: baseline_of(THEN)
    options: Sequence[str] = ()


THEN: Night = Night(job="1001", runs=6)
NOW = Night(job="2001", day=30)
KILLED = Failure(kind="killed", message="rank 1 died of signal 9 (SIGKILL)", rank=1, host="node1")
UNSTEADY = Failure(kind="unsteady", message="not steady: its windows drift by 9.0 %")
OF_COMMAND = {
    "configurations": (replace(CNN, strategy="command", command="torchrun train.py {batch}"),),
    "phases": False,
}
UPGRADED = {
    "host": "node7",
    "torch_version": "2.12.0",
    "driver_version": "580.95.05",
    "variables": {"OMP_NUM_THREADS": "8", "NCCL_P2P_DISABLE": "1"},
    "packages": {"torch": "2.12.0", "nvidia-nccl-cu13": "2.28.3"},
}
CPU_RANKS: Mapping[str, Any] = {"configurations": (ON_CPU,), "telemetry": False}
ALLOCATIONS = [Night(job=f"10{day:02d}", day=day, runs=1) for day in range(6)]
BOTH = {"configurations": (CNN, nights.BY_DP), "phases": False}
PAIRS = [replace(night, runs=2) for night in ALLOCATIONS]
ON_4, ONE = frozenset({4}), frozenset({1})
FINE = ToleranceOverride(gpus=4, margin=0.02)
WIDE = Tolerances(margin=0.1, ok_bound=0.15, overrides=(FINE,))
OF_MEMORY = ToleranceOverride(gpus=4, metric="peak_memory_bytes", margin=0.1)


def now(**changes: object) -> tuple[Night]:
    return (replace(NOW, **changes),)


def with_fault(**changes: object) -> tuple[Night]:
    return now(fault=Fault(**changes))  # type: ignore[arg-type] # any field of a fault


def faulty(**changes: object) -> Scenario:
    return Scenario(with_fault(**changes))


def of(*nights: Night, **changes: object) -> Callable[[], Baseline]:
    return lambda: baseline_of(*nights, **changes)


def then(**changes: object) -> Callable[[], Baseline]:
    return of(replace(THEN, **changes))


def on_both_sides(fault: Fault, /, **changes: object) -> Scenario:
    """Nights that share these changes, of which that of tonight has a fault."""
    return Scenario(now(fault=fault, **changes), baseline=then(**changes))


def failing(failures: Mapping[tuple[int, int], Failure]) -> Scenario:
    return Scenario(now(failures=failures))


def published_baseline() -> Baseline:
    return read_baseline(ROOT / "baselines" / "arc4.json")


def published_throughputs() -> Baseline:
    """Throughputs of the shape of ARC4's figures, more than twice what is measured."""
    plain = published_baseline()
    one = max(known(figure.mean_time_s) for figure in plain.published)
    changes = {"times_s": (), "timed": None, "discard_first": 0}
    figures = (
        replace(figure, samples_per_s=3000 * one / known(figure.mean_time_s), **changes)
        for figure in plain.published
    )
    return replace(plain, published=tuple(figures))


LOST_METRIC = "lost_metric_beside_inconclusive_time"
against_arc4 = partial(Scenario, baseline=published_baseline)
SCENARIOS: Mapping[str, Scenario] = {
    "ok": Scenario(now()),
    "single_gpu_clocks": faulty(computing=1.22, clock=0.82),
    "clocks_of_a_command": on_both_sides(Fault(computing=1.22, clock=0.82), **OF_COMMAND),
    "late_data_one_rank": faulty(data_s=0.020, ranks=ONE),
    "slow_rank": faulty(computing=1.22, ranks=ONE),
    "communication_on_4": faulty(communication_s=0.020, gpus=ON_4, nvlinks=5),
    "fault_without_loss": faulty(pcie_width=8),
    "bad_device": faulty(computing=1.22, clock=0.82, device=2),
    "memory_errors": faulty(communication_s=0.020, ecc_uncorrected=2, device=3),
    "environment": Scenario(
        now(fault=Fault(computing=1.1), environment=UPGRADED),
        then(environment={"packages": {"torch": "2.11.0", "nvidia-nccl-cu13": "2.27.7"}}),
    ),
    "no_evidence": on_both_sides(Fault(computing=1.1), phases=False, telemetry=False),
    "only_reference_faster": faulty(computing=0.9, gpus=ONE),
    "improved": Scenario(now(faster=1.1)),
    "unlikely_gain": Scenario(now(faster=3.0)),
    "slow_rank_beside_noise": on_both_sides(
        Fault(computing=1.08, ranks=ONE), runs=4, gpus=(1, 2), deviation=0.05
    ),
    "quiet_row_of_few_runs": Scenario(
        now(runs=1, gpus=(1, 2)), baseline=then(runs=2, gpus=(1, 2), deviations={2: 0.3})
    ),
    "noisy_tonight": Scenario(now(deviations={4: 0.08})),
    "noisy_baseline": Scenario(now(), baseline=then(deviations={2: 0.08, 4: 0.12})),
    "single_run": Scenario(now(runs=1)),
    "single_runs_on_both_sides": Scenario(now(runs=1), baseline=then(runs=1)),
    "uncertain_loss": Scenario(
        now(fault=Fault(computing=1.05), deviation=0.03, runs=2), baseline=then(deviation=0.03)
    ),
    "six_uncertain_runs": on_both_sides(Fault(computing=1.05), deviation=0.03, runs=6),
    "eight_uncertain_runs": on_both_sides(Fault(computing=1.05), deviation=0.03, runs=8),
    "missing_rows": Scenario(now(gpus=(1, 2), configurations=(CNN, RESNET))),
    "only_some": Scenario(now(), options=("--gpus", "1,4", "--case", "mnist_cnn/ddp")),
    "on_cpu": on_both_sides(Fault(computing=1.1), **CPU_RANKS),
    "noisy_cpu_ranks": Scenario(
        now(**CPU_RANKS, runs=6, gpus=(1, 2), deviation=0.03),
        baseline=then(**CPU_RANKS, gpus=(1, 2), deviation=0.03),
    ),
    "both_strategies": on_both_sides(Fault(communication_s=0.01), **BOTH),
    "two_sizes": on_both_sides(WELL, configurations=(CNN, replace(CNN, size="smoke"))),
    "nothing_in_common": Scenario(now(configurations=(RESNET,))),
    "other_size": Scenario(now(configurations=(replace(CNN, size="smoke"),))),
    "other_batch": Scenario(now(batch=64)),
    "other_machine": Scenario(now(**CPU_RANKS)),
    "other_placement": Scenario(now(gpus_per_node=2)),
    "two_nodes": on_both_sides(Fault(communication_s=0.015, gpus=frozenset({8})), gpus=(1, 4, 8)),
    "published_consistent": against_arc4(now(gpus=(1, 2))),
    "published_inconsistent": against_arc4(now(gpus=(1, 2), fault=Fault(communication_s=0.080))),
    "published_throughput_missed": Scenario(now(gpus=(1, 2)), baseline=published_throughputs),
    "published_incomparable": against_arc4(now(**CPU_RANKS, gpus=(1, 2))),
    "too_few_valid_runs": failing({(4, 1): UNSTEADY, (4, 2): UNSTEADY, (2, 1): KILLED}),
    "failed_runs": failing({(4, run): KILLED for run in (1, 2, 3)}),
    "all_failed": failing({(n, run): KILLED for n in (1, 2, 4) for run in (1, 2, 3)}),
    "all_unsteady": failing({(2, run): UNSTEADY for run in (1, 2, 3)}),
    "injected": Scenario(now(fault=Fault(data_s=0.020), injections=("data=20ms",))),
    "more_exposed_communication": faulty(communication_s=0.0045, gpus=ON_4, computing=0.96),
    "more_energy": faulty(energy=1.2, gpus=ON_4),
    "many_nights": Scenario(with_fault(communication_s=0.010), of(*ALLOCATIONS)),
    "nights_of_uneven_runs": Scenario(
        now(runs=2, fault=Fault(computing=1.06)),
        of(*(replace(a, runs=1 + n % 3, faster=1 - n / 45) for n, a in enumerate(ALLOCATIONS))),
    ),
    "nights_some_without_1_gpu": Scenario(
        now(runs=5), of(*PAIRS[:4], *(replace(night, gpus=(2, 4)) for night in PAIRS[4:]))
    ),
    "ends_of_different_nights": Scenario(
        (replace(NOW, gpus=(1,)), replace(NOW, job="2002", day=31, gpus=(2, 4))),
        of(replace(THEN, gpus=(1,)), replace(THEN, job="1002", gpus=(2, 4), runs=7)),
    ),
    "wide_tolerances": Scenario(with_fault(computing=1.08), of(THEN, tolerances=WIDE)),
    "noise_between_rows": Scenario(
        now(deviations={2: 0.05, 4: 0.001}, configurations=(CNN, RESNET), runs=4),
        baseline=then(deviations={2: 0.05, 4: 0.001}, configurations=(CNN, RESNET)),
    ),
    "several_files": Scenario((NOW, replace(NOW, job="2002", day=31, fault=Fault(computing=1.1)))),
    LOST_METRIC: Scenario(now(fault=Fault(memory=1.5), deviations={4: 0.08})),
}


# One for each branch of JSON is kept as JSON too, and one for each of the others in all formats.
IN_JSON = (
    *("ok", "single_gpu_clocks", "late_data_one_rank", "slow_rank", "communication_on_4"),
    *("bad_device", "memory_errors", "environment", "improved", "uncertain_loss", "two_nodes"),
    "published_consistent",
)
IN_ALL = (*("nothing_in_common", "published_inconsistent", "all_failed", "injected"), LOST_METRIC)
SUFFIXES = {"json": "json", "markdown": "md", "junit": "xml"}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_comparison_is_said_as_before(name: str, folder: Path) -> None:
    scenario = SCENARIOS[name]
    write_baseline(folder / "nightly.json", scenario.baseline())
    files = [f"night{night.day}.jsonl" for night in scenario.nights]
    for file, night in zip(files, scenario.nights, strict=True):
        write_night(folder / file, night)
    kept = [*SUFFIXES] if name in IN_ALL else ["json"] if name in IN_JSON else []
    formats = [f"--format={each}=out.{SUFFIXES[each]}" for each in kept]
    text = given("compare", "nightly.json", *files, *scenario.options, *formats)
    for suffix in map(SUFFIXES.__getitem__, kept):
        text += f"\n---- out.{suffix}\n{(folder / f'out.{suffix}').read_text()}"
    check(f"compare/{name}.txt", _shortened(text))


def _shortened(text: str) -> str:
    """The formats without what the text above them says already."""
    said = text[text.index("\n") : text.index("exit code", text.index("(exit code") + 10)].strip()
    text = re.sub(r"<system-out>(.*?)\n</system-out>", partial(_system_out, said), text, flags=re.S)
    return _compact(text)


def _compact(text: str) -> str:
    """JSON with its smallest objects in a line each, numbers to nine digits."""
    text = re.sub(r"\{[^{}]*\}", lambda found: " ".join(found[0].split()), text)
    return re.sub(
        r"(?<=: )-?\d+\.\d+(e-\d+)?(?=,| \}|\n)", lambda found: f"{_rounded(float(found[0]))}", text
    )


def _system_out(said: str, found: re.Match[str]) -> str:
    return "<system-out>$TEXT</system-out>" if unescape(found[1]) == said else found[0]


def _rounded(number: float) -> float:
    return 0.0 if abs(number) < 1e-12 else float(f"{number:.9g}")


def test_a_comparison_on_a_terminal_keeps_to_its_columns(folder: Path) -> None:
    write_baseline(folder / "nightly.json", baseline_of(THEN))
    write_night(folder / "now.jsonl", with_fault(communication_s=0.020, pcie_width=8)[0])
    shown = [given("compare", "nightly.json", "now.jsonl", columns=n) for n in (60, 80, 140)]
    check("compare_on_terminals.txt", *shown)


def test_a_page_reads_as_before(folder: Path) -> None:
    write_baseline(folder / "well.json", baseline_of(THEN))
    slow = Fault(computing=1.3, device=2, clock=0.7, ranks=ONE, communication_s=0.01)
    failures, upgraded = {(4, 2): KILLED, (2, 3): UNSTEADY}, {"driver_version": "595.12"}
    night = replace(NOW, fault=slow, runs=4, failures=failures, environment=upgraded)
    write_night(folder / "now.jsonl", night)
    given("report", "now.jsonl", "--baseline", "well.json", "-o", "page.html")
    page = re.sub(r"(?s)<(style|svg)\b.*?</\1>", "", (folder / "page.html").read_text())
    lines = re.sub(r"</t[dh]>", " | ", " ".join(page.split()))
    lines = re.sub(r"</(?:tr|p|h\d|li|dd|div|caption|summary|a|title)>", "\n", lines)
    words = (" ".join(each.split()) for each in re.sub(r"<[^<>]*>", " ", lines).splitlines())
    check("page.txt", unescape("".join(f"{each}\n" for each in words if each)))


NIGHTS = {
    "healthy": NOW,
    "two_cases": replace(NOW, configurations=(CNN, RESNET)),
    "slow_rank": with_fault(computing=1.22, ranks=ONE, clock=0.82)[0],
    "without_1_gpu": replace(NOW, gpus=(2, 4), deviations={4: 0.2}),
    "single_runs": replace(NOW, runs=1),
    "two_nodes": replace(NOW, gpus=(1, 4, 8)),
    "batches": replace(NOW, configurations=(replace(CNN, batch=32), CNN), gpus=(1, 2)),
    "on_cpu": replace(NOW, configurations=(ON_CPU,), telemetry=False, gpus=(1, 2)),
    "without_phases": replace(NOW, phases=False, telemetry=False),
    "failures": replace(NOW, failures={(4, 1): KILLED, (4, 2): UNSTEADY, (1, 2): KILLED}),
    "nothing_valid": replace(NOW, gpus=(2,), failures={(2, run): KILLED for run in (1, 2, 3)}),
    "injected": now(fault=Fault(data_s=0.02), injections=("data=20ms", "rank=1:slow=1.5"))[0],
    "empty": replace(NOW, runs=0),
}


@pytest.mark.parametrize("name", NIGHTS)
def test_results_are_shown_as_before(name: str, folder: Path) -> None:
    write_night(folder / "night.jsonl", NIGHTS[name])
    widths = (None, 80) if name in ("failures", "two_nodes") else (None,)
    phases = [()] if name in ("empty", "injected", "single_runs") else [(), ("--phases",)]
    shown = (given("show", "night.jsonl", *each, columns=n) for each in phases for n in widths)
    check(f"show/{name}.txt", *shown)


@pytest.mark.parametrize("name", ["two_nodes", "failures", "injected"])
def test_results_are_given_to_other_tools_as_before(name: str, folder: Path) -> None:
    write_night(folder / "night.jsonl", NIGHTS[name])
    shown = [given("show", "night.jsonl", "--format", each) for each in ("csv", "latex", "json")]
    check(f"show/{name}_formats.txt", _compact("\n".join(shown)))


@pytest.mark.parametrize("name", ["failures", "injected", "without_1_gpu"])
def test_a_session_closes_with_the_table_as_before(name: str, folder: Path) -> None:
    results = nights.results_of_night(NIGHTS[name])
    with redirect_stdout(io.StringIO()):
        lines = summary_lines(
            results, folder / "night.jsonl", new_runs=results.runs, interrupted=name == "failures"
        )
        text = "".join(f"{line}\n" for line in lines)
    check(f"session/{name}.txt", text)


def with_history() -> Baseline:
    baseline = baseline_of(THEN)
    results = [nights.results_of_night(replace(NOW, runs=6, faster=1.1))]
    at = f"{nights.EPOCH.date()}T09:00:00+00:00"
    changes = proposals(baseline, results)
    return revised(baseline, changes, results, reason="new driver", at=at, by="operator")


BASELINES: Mapping[str, Callable[[], Baseline]] = {
    "measured": then(),
    "two_cases": then(configurations=(CNN, RESNET)),
    "several_nights": of(*ALLOCATIONS),
    "with_history": with_history,
    "with_tolerances": of(THEN, tolerances=Tolerances(margin=0.03, overrides=(OF_MEMORY,))),
}


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_is_shown_as_before(name: str, folder: Path) -> None:
    write_baseline(folder / "nightly.json", BASELINES[name]())
    shown = [given("show", "nightly.json"), given("baseline", "show", "nightly.json", columns=80)]
    check(f"baseline/{name}.txt", *shown)


@pytest.mark.parametrize("name", ["arc4", "cte-power", "juwels-booster"])
def test_a_published_baseline_is_shown_as_before(name: str, folder: Path) -> None:
    shutil.copy(ROOT / "baselines" / f"{name}.json", folder)
    formats = ("text", "csv", "latex")
    shown = [given("show", f"{name}.json", "--format", each) for each in formats]
    check(f"baseline/{name}.txt", *shown)


def test_a_baseline_is_updated_in_the_words_as_before(folder: Path) -> None:
    write_baseline(folder / "a.json", baseline_of(THEN))
    write_night(folder / "same.jsonl", THEN)
    write_night(folder / "faster.jsonl", replace(NOW, runs=6, gpus=(1, 2, 4, 8), faster=1.1))
    write_night(folder / "short.jsonl", replace(NOW, runs=2, faster=1.1))
    write_night(folder / "cpu.jsonl", replace(NOW, configurations=(ON_CPU,), telemetry=False))
    update = ("baseline", "update", "a.json")
    why = ("--reason", "new driver")
    check(
        "baseline_update.txt",
        given(*update, "faster.jsonl"),
        given(*update, "same.jsonl"),
        given(*update, "short.jsonl"),
        given(*update, "short.jsonl", "--accept", "all", *why),
        given(*update, "cpu.jsonl", "--accept", "all", *why),
        given(*update, "faster.jsonl", "--accept", "all"),
        given(*update, "faster.jsonl", "--accept", "resnet50", *why),
        given(*update, "faster.jsonl", "--accept", "mnist_cnn/ddp@4", *why),
        given(*update, "faster.jsonl", "--accept", "all", *why),
        given(*update, "faster.jsonl"),
    )


def test_a_baseline_is_recorded_in_the_words_as_before(folder: Path) -> None:
    write_night(folder / "night.jsonl", THEN)
    write_night(folder / "short.jsonl", replace(NOW, runs=2))
    write_night(folder / "noisy.jsonl", replace(THEN, deviations={2: 0.15, 4: 0.3}))
    write_night(folder / "injected.jsonl", replace(THEN, injections=("data=20ms",)))
    record = ("baseline", "record", "--cluster", "ARC4")
    check(
        "baseline_record.txt",
        given(*record, "night.jsonl", "-o", "a.json"),
        given(*record, "night.jsonl", "-o", "a.json"),
        given(*record, "night.jsonl", "-o", "b.json", "--gpus", "1,4", "--case", "mnist_cnn"),
        given(*record, "night.jsonl", "-o", "c.json", "--case", "resnet50"),
        given(*record, "noisy.jsonl", "-o", "d.json"),
        given(*record, "noisy.jsonl", "-o", "d.json", "--weak"),
        given(*record, "short.jsonl", "-o", "e.json"),
        given(*record, "injected.jsonl", "-o", "f.json"),
        given("baseline", "show", "a.json"),
        given("baseline", "show", "d.json"),
    )


def test_a_table_is_imported_in_the_words_as_before(folder: Path) -> None:
    Path("table.csv").write_text("gpus,time (s),speedup\n1,145.0,1.0\n2,84.5,1.7\n4,x,3\n")
    Path("good.csv").write_text("gpus,time (s),speedup\n1,145.0,1.0\n2,84.5,1.7\n")
    Path("table.md").write_text("| n | images/s |\n|---|---|\n| 1 | 360 |\n| 8 | 2650.5 |\n")
    start = ("baseline", "import", "--cluster", "ARC4", "--source", "a talk", "--gpu-name", "V100")
    row = ("--case", "mnist_cnn", "--strategy", "ddp", "--batch-per-gpu", "128")
    check(
        "baseline_import.txt",
        given(*start, *row, "table.csv", "-o", "a.json", "--timed", "job"),
        given(*start, *row, "good.csv", "-o", "a.json"),
        given(*start, *row, "good.csv", "-o", "a.json", "--timed", "job"),
        given("show", "a.json"),
        given(*start, *row, "--gpus-per-node", "4", "table.md", "-o", "b.json"),
        given("show", "b.json"),
    )


PROFILES = ("arc4", "cte-power", "juwels-booster", "waic")
ON_NODES = ("--gpus", "1,2,8", "--gpus-per-node", "4", "--account", "a")
SETTINGS = (
    *("--gpus", "1,2,4,8", "--runs", "2", "--baseline", "mine.json", "--partition", "p"),
    *("--account", "a", "--time", "01:30:00", "--modules", "cuda/12 python"),
)


@pytest.mark.parametrize("profile", [*PROFILES, "generic-slurm", "generic-pbs"])
def test_a_job_script_is_as_before(profile: str, folder: Path) -> None:
    options = SETTINGS if profile in PROFILES else ON_NODES
    shown = [given("submit", profile, "--print", *more) for more in ((), options)]
    check(f"submit/{profile}.txt", *shown)


OWN_CLUSTER = """\
description = "The GPU partition of My Site"
scheduler = "slurm"

[job]
time_limit = "01:00:00"
modules = ["apptainer"]
unset = ["OMP_PLACES"]
prologue = ["ulimit -l unlimited", "source ./proxy.sh"]
container = 'apptainer exec --nv "$HOME/torch.sif"'
"""


def test_a_job_script_of_a_users_own_folder_and_container_is_as_before(folder: Path) -> None:
    Path("own.toml").write_text(OWN_CLUSTER)
    options = ("--print", "--gpus", "1,2", "--gpus-per-node", "4", "--cases", "my_cases")
    check("submit/own.txt", given("submit", "./own.toml", *options, "--baseline", "mine.json"))


@pytest.mark.parametrize("fleet", ["0,1", "2,3", "4,5,6,7,8,9", "99", ""])
def test_the_doctor_says_of_gpus_what_it_said(fleet: str, folder: Path, driver: Path) -> None:
    variables = {"LD_LIBRARY_PATH": str(driver), "FAKE_NVML_FLEET": fleet, "PYTHONPATH": str(ROOT)}
    result = python("-m", "gpuscale", "doctor", **variables)
    # What is above the driver is this machine's own.
    text = result.stdout[result.stdout.index("driver ") :]
    name = fleet.replace(",", "_") or "none"
    check(f"doctor/{name}.txt", f"{text}{result.stderr}exit code {result.returncode}\n")


def test_a_history_says_which_night_changed_what(folder: Path) -> None:
    upgraded = {"driver_version": "595.12", "torch_version": "2.12.0"}
    for day in range(24):
        night = Night(job=f"{3000 + day}", day=day, runs=1, configurations=(CNN, RESNET))
        if day >= 12:
            night = replace(night, faster=0.95, environment=upgraded)
        if day == 17:
            night = replace(night, fault=Fault(computing=1.2))
        write_night(folder / f"night-{day:02d}" / "results.jsonl", night)
    injected = replace(NOW, job="3099", injections=("data=20ms",))
    write_night(folder / "injected.jsonl", injected)
    (folder / "damaged.jsonl").write_text("no results\n")
    write_night(folder / "other.jsonl", replace(NOW, configurations=(ON_CPU,), telemetry=False))
    nights = [f"night-{day:02d}" for day in range(24)]
    (folder / "empty").mkdir()
    check(
        "history.txt",
        given("history", *nights),
        given("history", *nights, columns=80),
        given("history", *nights[:3], "--gpus", "1", "--case", "resnet50"),
        given("history", *nights, "injected.jsonl"),
        given("history", "."),
        given("history", "damaged.jsonl"),
        given("history", "empty"),
        given("history", "nowhere"),
        given("history", *nights, "--case", "gpt"),
    )


def test_a_history_has_a_sick_gpu_and_its_recovery_which_comparisons_name(folder: Path) -> None:
    for day in range(30):
        drift = 1 + 0.004 * max(0, day - 16)
        night = Night(job=f"{3000 + day}", day=day, runs=1, faster=1 / drift)
        if day >= 6:
            upgraded = {"driver_version": "595.12"}
            night = replace(night, faster=0.97 / drift, environment=upgraded)
        if 12 <= day < 15:
            night = replace(night, fault=Fault(computing=1.12, device=2, clock=0.88))
        write_night(folder / f"night-{day:02d}" / "results.jsonl", night)
    # The first night with the new driver, with the sick GPU, without it, and of the drift.
    files = (f"night-{day:02d}/results.jsonl" for day in (6, 12, 15, 29))
    judged = (given("compare", "--history", ".", file) for file in files)
    check("history_of_faults.txt", given("history", "."), *judged)
