"""Other work on the host: measured for each run, and named where it matters."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builders import baseline, measured
from builders.causes import row_of
from changing import replace
from nvml.library import GPU_A, compile_driver
from statements import facts_of

from gpuscale.base.host import cpu_model
from gpuscale.judge.compare import compare
from gpuscale.judge.diagnose import diagnose
from gpuscale.judge.diagnose.causes import busy_host
from gpuscale.judge.sides import sides_of
from gpuscale.measure.evidence.node_meter import HostLoadMeter
from gpuscale.records import Baseline, HostLoad, NodeEvidence, Results, Run

QUIET = HostLoad(load_average=0.4, cores=4)
BUSY = HostLoad(load_average=9.5, cores=4)
IDLE = NodeEvidence(host="n1", load=replace(QUIET, load_average=0.1))
THEN = {1: [0.100, 0.1003, 0.0998], 2: [0.110, 0.1103, 0.1098]}
SLOWER = {1: [0.120, 0.1203, 0.1198], 2: [0.132, 0.1323, 0.1318]}


@pytest.mark.parametrize(
    ("load", "is_busy"),
    [
        (QUIET, False),
        # As much as ranks of a run before leave behind.
        (replace(QUIET, load_average=4.0), False),
        (replace(QUIET, load_average=6.1), True),
        (replace(QUIET, gpu_processes=0), False),
        (replace(QUIET, gpu_processes=1), True),
    ],
)
def test_a_host_is_busy_beyond_our_own_runs(load: HostLoad, is_busy: bool) -> None:
    assert load.is_busy is is_busy


def test_the_load_is_that_of_this_host_and_its_shares_are_shares() -> None:
    meter = HostLoadMeter()
    time.sleep(0.1)  # several ticks
    load = meter.read()
    assert load.cores == os.cpu_count()
    assert load.gpu_processes is None
    if Path("/proc/pressure/cpu").exists():
        assert load.cpu_pressure is not None
    assert load.steal is not None


@pytest.mark.parametrize("flags", [(), ("-DOLD_DRIVER",)])
def test_processes_of_others_on_gpus_are_counted(tmp_path: Path, flags: tuple[str, ...]) -> None:
    script = (
        "from gpuscale.measure.evidence.node_meter import DriverProcess\n"
        "driver = DriverProcess()\n"
        f"print(*(driver.count_foreign_processes({{'{GPU_A}': None}}) for _ in range(2)))\n"
        # The keeper forks ranks: they must not find a driver that is open already.
        "print('libnvidia-ml' in open('/proc/self/maps').read())"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(compile_driver(tmp_path, *flags))}
    answer = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    # The library of the tests has two on every device.
    assert answer.stdout == "2 2\nFalse\n"


@pytest.mark.parametrize("driver", ["time.sleep(600)", "os.abort()", "1 / 0"])
def test_a_driver_that_hangs_or_dies_costs_its_patience_and_nothing_else(driver: str) -> None:
    script = (
        "import os, time\n"
        "from gpuscale.measure import smi\n"
        "from gpuscale.measure.evidence import node_meter as gpus\n"
        f"gpus._PATIENCE_S, smi.open_smi = 0.5, lambda: {driver}\n"
        "driver = gpus.DriverProcess()\n"
        "print(*(driver.count_foreign_processes({'GPU': None}) for _ in range(2)))\n"
        # It ends, or would stay until this process ends.
        "driver._pipe.close(); os.waitpid(driver.number, 0)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert answer.stdout == "None None\n"


def on_second_node(load: HostLoad | None) -> NodeEvidence:
    return NodeEvidence(host="n2", load=load)


def under(load: HostLoad | None, runs: tuple[Run, ...]) -> tuple[Run, ...]:
    return tuple(replace(each, nodes=(IDLE, on_second_node(load))) for each in runs)


def beside(then: HostLoad | None, now: HostLoad | None) -> tuple[Baseline, list[Results]]:
    recorded, after = baseline(THEN), measured(SLOWER)
    return (
        replace(recorded, runs=under(then, recorded.runs)),
        [replace(after, runs=under(now, after.runs))],
    )


@pytest.mark.parametrize(
    ("then", "now", "codes", "is_cause"),
    [
        (QUIET, BUSY, {"busy_host"}, True),
        (BUSY, BUSY, {"busy_host_alike"}, False),
        (BUSY, QUIET, {"busy_host_before"}, False),
        (QUIET, QUIET, set(), False),
        (None, None, set(), False),
    ],
)
def test_a_comparison_names_a_busy_host_and_a_loss_puts_it_among_its_causes(
    then: HostLoad | None, now: HostLoad | None, codes: set[str], is_cause: bool
) -> None:
    recorded, after = beside(then, now)
    comparison = diagnose(sides_of(recorded, after), compare(recorded, after))
    named = {note.code for note in comparison.notes}
    assert {code for code in named if code.startswith("busy_host")} == codes
    causes = {cause.code for entry in comparison.entries for cause in entry.causes}
    assert ("busy_host" in causes) is is_cause


@pytest.mark.parametrize(
    ("then", "now", "is_cause"),
    [
        ((QUIET, QUIET, BUSY), (BUSY, BUSY, QUIET), True),
        ((QUIET,), (BUSY, QUIET), False),
        ((QUIET, BUSY), (BUSY,), False),
        ((), (BUSY,), False),
    ],
)
def test_other_work_is_a_cause_where_most_runs_have_it_that_few_had_before(
    then: tuple[HostLoad, ...], now: tuple[HostLoad, ...], is_cause: bool
) -> None:
    row = row_of([], [], gpus=4)
    before, after = (tuple(("n2", load) for load in side) for side in (then, now))
    point = replace(row.point, loads_before=before, loads_after=after)
    causes = [*busy_host(replace(row, points={4: point}), ())]
    assert [cause.hosts for cause in causes] == [("n2",)] * is_cause


def test_the_run_with_the_most_other_work_is_named_among_those_that_have_some() -> None:
    more, others = replace(BUSY, load_average=12.0), replace(QUIET, gpu_processes=2)
    after = measured(SLOWER)
    loads = [QUIET, more, BUSY, None, others, QUIET]
    runs = [
        replace(run, nodes=(IDLE, on_second_node(load)))
        for run, load in zip(after.runs, loads, strict=True)
    ]
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
