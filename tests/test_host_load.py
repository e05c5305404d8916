"""Load of the host by other processes: measured for each run, and named if it matters."""

from pathlib import Path

import pytest
from builders import baseline, measured, results_text
from builders.comparisons import viewed
from changing import replace
from command_line import gpuscale, python
from nvml.library import GPU_A, compile_driver
from statements import facts_of

from gpuscale.base.host import cpu_model
from gpuscale.judge.compare import compare
from gpuscale.measure.evidence.node import LoadMeter
from gpuscale.measure.telemetry.sampler import read_samples
from gpuscale.records import Baseline, HostLoad, NodeEvidence, Results, Run
from gpuscale.reports.comparison.text_markdown_junit import text

QUIET = HostLoad(other_cores=0.1, cores=4)
BUSY = HostLoad(other_cores=2.0, cores=4)
IDLE = NodeEvidence(host="n1", load=replace(QUIET, other_cores=0.04))
THEN = {1: [0.100, 0.1003, 0.0998], 2: [0.110, 0.1103, 0.1098]}
SLOWER = {1: [0.120, 0.1203, 0.1198], 2: [0.132, 0.1323, 0.1318]}


@pytest.mark.parametrize(
    ("load", "is_busy"),
    [
        (QUIET, False),
        (replace(QUIET, other_cores=0.4), False),
        (replace(QUIET, other_cores=0.41), True),
        (replace(QUIET, other_cores=None), False),
        (replace(QUIET, gpu_processes=0), False),
        (replace(QUIET, gpu_processes=1), True),
    ],
)
def test_a_host_is_busy_if_others_use_a_tenth_of_it_or_a_gpu(load: HostLoad, is_busy: bool) -> None:
    assert load.is_busy is is_busy


FAMILY, RANK, LOADER, STRANGER = 10, 11, 12, 13
PARENTS = {FAMILY: 1, RANK: FAMILY, LOADER: RANK, STRANGER: 1}


def write_proc(root: Path, cpus: list[tuple[int, int]], used: dict[int, tuple[int, int]]) -> None:
    """Write (busy, idle) ticks of each CPU, and ticks of each process and its ended children."""
    lines = ["cpu  9 9 9 9 9 9 9 9 9 9"]
    for number, (busy, idle) in enumerate(cpus):
        lines.append(f"cpu{number} {busy - 5} 1 3 {idle} 0 7 8 1 0 0")
    (root / "proc/stat").write_text("\n".join([*lines, "intr 1 2", ""]))
    for process, (own, of_children) in used.items():
        (root / f"proc/{process}").mkdir(exist_ok=True)
        times = f"{own - 1} 1 {of_children} 0"
        stat = f"{process} (a ) b) R {PARENTS[process]} 1 1 0 -1 0 0 0 0 0 {times} 20 0"
        (root / f"proc/{process}/stat").write_text(stat)
        allowed = "0-2" if process == FAMILY else "0-1"
        (root / f"proc/{process}/status").write_text(f"Cpus_allowed_list:\t{allowed}\n")


@pytest.mark.parametrize(
    ("on_cpus", "used", "others"),
    [
        # Ranks use all that is used: themselves, by loaders, by processes that have ended.
        ([900, 800], {RANK: (900, 0), LOADER: (800, 0)}, 0.0),
        ([900, 800], {RANK: (100, 0), FAMILY: (10, 1590)}, 0.0),
        # A stranger shares a CPU of the ranks, or has one for itself.
        ([1000, 960], {RANK: (1450, 0), STRANGER: (500, 0)}, 0.51),
        ([1000, 1000], {RANK: (1000, 0)}, 1.0),
        # The third CPU is none of the ranks'.
        ([500, 500, 1000], {RANK: (980, 0)}, 0.02),
        # A daemon has started the processes that compute.
        ([1000, 1000], {RANK: (20, 0)}, None),
    ],
)
def test_the_cpu_time_of_others_is_what_the_runs_own_processes_did_not_use(
    tmp_path: Path, on_cpus: list[int], used: dict[int, tuple[int, int]], others: float | None
) -> None:
    (tmp_path / "proc").mkdir()
    write_proc(tmp_path, [(100, 100)] * len(on_cpus), dict.fromkeys(PARENTS, (1, 0)))
    meter = LoadMeter(FAMILY, tmp_path)
    after = {process: (1 + own, more) for process, (own, more) in used.items()}
    write_proc(tmp_path, [(100 + busy, 1100 - busy) for busy in on_cpus], after)
    load = meter.load(gpu_processes=3, may_run_elsewhere=True)
    assert load == HostLoad(other_cores=others, cores=2, gpu_processes=3)
    # Ranks that gpuscale itself starts are never elsewhere, however little others leave them.
    assert meter.load().other_cores is not None


@pytest.mark.parametrize("flags", [(), ("-DOLD_DRIVER",)])
def test_processes_of_others_on_gpus_are_counted(tmp_path: Path, flags: tuple[str, ...]) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from gpuscale.measure.telemetry.sampler import DriverProcess\n"
        "driver = DriverProcess()\n"
        "for _ in range(2):\n"
        f"    print(driver.start({{'{GPU_A}': None}}, Path(sys.argv[1])))\n    driver.stop()\n"
        # The keeper forks ranks: they must not find a driver that is open already.
        "print('libnvidia-ml' in open('/proc/self/maps').read())"
    )
    driver = {"LD_LIBRARY_PATH": str(compile_driver(tmp_path, *flags))}
    answer = python("-c", script, tmp_path / "samples", **driver)
    # The library of the tests has two on every device.
    assert answer.stdout == "2\n2\nFalse\n"
    assert len(read_samples(tmp_path / "samples")[1]) >= 2


@pytest.mark.parametrize("driver", ["time.sleep(600)", "os.abort()", "1 / 0"])
def test_a_driver_that_hangs_or_dies_costs_its_patience_alone(driver: str, tmp_path: Path) -> None:
    script = (
        "import os, sys, time; from pathlib import Path\n"
        "from gpuscale.measure.telemetry import sampler\n"
        f"sampler._PATIENCE_S, sampler.open_smi = 0.5, lambda: {driver}\n"
        "driver = sampler.DriverProcess()\n"
        "print(driver.start({'GPU': None}, Path(sys.argv[1])), driver.is_usable)\n"
        "driver.stop(); os.waitpid(driver.number, 0)\n"
    )
    answer = python("-c", script, tmp_path / "samples")
    assert answer.stdout == "None False\n"


def under(load: HostLoad | None, runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """The runs with this load on their second node."""
    second = NodeEvidence(host="n2", load=load)
    return tuple(replace(each, nodes=(IDLE, second)) for each in runs)


def beside(then: HostLoad | None, now: HostLoad | None) -> tuple[Baseline, list[Results]]:
    recorded, after = baseline(THEN), measured(SLOWER)
    nights = [replace(after, runs=under(now, after.runs))]
    return replace(recorded, runs=under(then, recorded.runs)), nights


@pytest.mark.parametrize(
    ("then", "now", "codes"),
    [
        (QUIET, BUSY, {"busy_host"}),
        (BUSY, BUSY, {"busy_host", "busy_host_before"}),
        (BUSY, QUIET, {"busy_host_before"}),
        (QUIET, QUIET, set()),
        (None, None, set()),
    ],
)
def test_a_comparison_names_a_busy_host(
    then: HostLoad | None, now: HostLoad | None, codes: set[str]
) -> None:
    recorded, after = beside(then, now)
    named = {note.code for note in compare(recorded, after).notes}
    assert {code for code in named if code.startswith("busy_host")} == codes


def test_all_that_shows_runs_names_a_busy_host(tmp_path: Path) -> None:
    busy = "measured on a busy host in 3 of 6 runs (2.0 of 4 cores used by others)"
    quiet, picture = beside(None, QUIET)[1][0], tmp_path / "shown.svg"
    runs = (*under(BUSY, quiet.runs[:3]), *quiet.runs[3:])
    for made, is_named in ((runs, True), (quiet.runs, False)):
        night, recorded = (tmp_path / f"{is_named}.{kind}" for kind in ("jsonl", "json"))
        night.write_text(results_text(replace(quiet, runs=made)))
        record = ("baseline", "record", night, "-o", recorded, "--cluster", "ours", "--weak")
        assert gpuscale(*record).returncode == 0
        for command in (
            *(("show", night), ("show", night, "--phases"), ("history", night)),
            *(("report", night, "-o", picture), ("plot", night, "-o", picture)),
            ("baseline", "show", recorded),
        ):
            answer = gpuscale(*command)
            assert answer.returncode == 0
            said = picture.read_text() if picture in command else answer.stdout
            assert (busy in said) is is_named, command


def test_a_history_counts_busy_runs_of_the_rows_that_it_shows(tmp_path: Path) -> None:
    (found,) = beside(None, QUIET)[1]
    runs = [under(BUSY if run.gpus > 1 else QUIET, (run,))[0] for run in found.runs]
    (tmp_path / "night.jsonl").write_text(results_text(replace(found, runs=tuple(runs))))
    for gpus in (1, 2):
        said = gpuscale("history", tmp_path / "night.jsonl", "--gpus", gpus).stdout
        assert ("busy host" in said) is (gpus > 1)


def test_an_open_row_asks_for_more_runs_only_if_the_hosts_of_both_sides_were_idle() -> None:
    recorded, after = baseline({1: [0.1, 0.101, 0.1] * 2}), measured({1: [0.1, 0.103]})
    for then, now, words, step in (
        (QUIET, QUIET, "1 more run would probably settle it", "make about 1 more run ("),
        (QUIET, BUSY, "host is idle", "measure again once the host is idle"),
        (BUSY, QUIET, "the baseline's host was busy: ", "measure the baseline again once the host"),
    ):
        before = replace(recorded, runs=under(then, recorded.runs))
        measured_now = replace(after, runs=under(now, after.runs))
        comparison = compare(before, [measured_now])
        view = viewed(comparison, measured_now)
        shown = " ".join(text(view).split())
        assert words in shown
        assert ("probably settle it" in shown) is (then is now is QUIET)
        assert (comparison.entries[0].further_runs is None) is (BUSY in (then, now))
        assert dict(view.headline)["next"].startswith(step)


@pytest.mark.parametrize("nights", ["abcd", "abc"])
def test_one_busy_night_of_four_leaves_the_forecast_of_runs(nights: str) -> None:
    recorded = baseline({1: [0.1, 0.101, 0.1, 0.1] * 3}, allocations=nights)
    busy = replace(recorded, runs=(*under(BUSY, recorded.runs[:3]), *recorded.runs[3:]))
    (row,) = compare(busy, [measured({1: [0.1, 0.105]})]).entries
    assert (row.further_runs is not None) is (len(nights) == 4)


def test_a_busy_host_in_one_run_of_many_is_named_and_leaves_the_next_step() -> None:
    recorded, after = baseline({1: [0.1, 0.101, 0.1] * 2}), measured({1: [0.1, 0.103]})
    busy = replace(recorded, runs=(*under(BUSY, recorded.runs[:1]), *recorded.runs[1:]))
    for before in (recorded, busy):
        comparison = compare(before, [after])
        codes = {note.code for note in comparison.notes}
        assert ("seldom_busy_host_before" in codes) is (before is busy)
        step = dict(viewed(comparison, after).headline)["next"]
        assert step.startswith("make about 1 more run")


def test_the_run_with_the_most_other_work_is_named_among_those_that_have_some() -> None:
    more, others = replace(BUSY, other_cores=2.5), replace(QUIET, gpu_processes=2)
    after = measured(SLOWER)
    loads = [QUIET, more, BUSY, None, others, QUIET]
    runs = [under(load, (run,))[0] for run, load in zip(after.runs, loads, strict=True)]
    comparison = compare(baseline(THEN), [replace(after, runs=tuple(runs))])
    facts = facts_of(comparison.notes, "busy_host")
    assert (facts["busy"], facts["made"], facts["on"], facts["load"]) == (3, 6, "n2", more)


def test_a_cpu_without_a_model_name_is_named_by_its_machine(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text("CPU implementer\t: 0x41\n")
    assert cpu_model(tmp_path) is None
    dmi = tmp_path / "sys" / "class" / "dmi" / "id"
    dmi.mkdir(parents=True)
    (dmi / "product_name").write_text("Grace Hopper blade\n")
    assert cpu_model(tmp_path) == "Grace Hopper blade"
