"""Exports as other tools read them."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import builders as make
import pytest
from builders.nights import CNN, RESNET, Night, results_of_night, write_night
from changing import replace

from gpuscale.analysis.scaling import scaling_points
from gpuscale.cli import main
from gpuscale.records import Failure, GpuWindow, Results

KILLED = Failure(kind="killed", message="rank 1 on node2 was killed by SIGKILL", rank=1)
TONIGHT = Night(job="4711", failures={(4, 3): KILLED}, gpus=(1, 2, 4, 8))
NO_EXTRA = "needs the extra: pip install 'gpuscale[tensorboard]'"
IN_A_WINDOW = {"utilization_mean": 0.9, "power_mean_w": 250.0, "memory_used_peak_bytes": 2**30}


def tonight() -> Results:
    """Results of tonight, with counters of each device in each window."""
    results = results_of_night(TONIGHT)
    runs = []
    for run in results.runs:
        seen = tuple(GpuWindow(samples=3, values=IN_A_WINDOW) for _ in run.windows)
        later = [replace(each, started_at_s=each.started_at_s + 2) for each in run.unsynced_windows]
        summaries = [replace(each, windows=seen) for each in run.gpu_summaries]
        # Times are by rank, in whatever order the ranks were written down.
        windows = [
            replace(w, busy_s=tuple(each + rank / 1e4 for rank, each in enumerate(w.busy_s)))
            for w in run.windows
        ]
        runs.append(
            replace(
                run,
                windows=tuple(windows),
                ranks=run.ranks[::-1],
                unsynced_windows=tuple(later),
                gpu_summaries=tuple(summaries),
            )
        )
    return replace(results, runs=tuple(runs))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to give commands in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_faults_on_purpose_are_named_wherever_their_results_go(folder: Path) -> None:
    pytest.importorskip("tensorboard", reason=NO_EXTRA)
    night = Night(job="4711", gpus=(1,), runs=1, injections=("data=5ms",))
    write_night(folder / "night.jsonl", night)
    assert main(["export", "tensorboard", "logs", "night.jsonl"]) == 0
    assert main(["export", "trace", "night.json", "night.jsonl"]) == 0
    (begun,) = (folder / "logs").iterdir()
    assert begun.name.endswith("-4711-INJECTED-data=5ms")
    assert "INJECTED data=5ms" in (folder / "night.json").read_text()


# Otava


def test_the_table_has_every_night(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nights = [
        Night(job=str(day), day=day, configurations=(CNN, RESNET) if day != 2 else (CNN,))
        for day in range(5)
    ]
    for night in nights:
        write_night(folder / f"{night.job}.jsonl", night)
    assert main(["export", "otava", f"../{folder.name}/nights.csv", "."]) == 0
    configuration = capsys.readouterr().out
    files = [json.loads(text) for text in re.findall(r"file: (.*)", configuration)]
    assert files == [str(folder / "nights.csv"), str(folder / "nights-2.csv")]
    tables = [list(csv.DictReader(Path(file).read_text().splitlines())) for file in files]
    assert [len(table) for table in tables] == [5, 4]
    assert [row["job"] for row in tables[1]] == ["0", "1", "3", "4"]
    point = scaling_points(results_of_night(nights[3]).runs)[2]
    assert point.step_time_s is not None
    on_4 = f"{point.configuration.label} on 4 GPUs"
    assert float(tables[0][3][on_4]) == pytest.approx(point.step_time_s.value)
    assert all(value for table in tables for row in table for value in row.values())
    columns = re.findall(r'^ {6}(".*"): \{direction: -1\}$', configuration, re.MULTILINE)
    known = {*tables[0][0], *tables[1][0]} - {"time", "job", "host", "driver", "torch"}
    assert {json.loads(column) for column in columns} == known


# TensorBoard


def test_tensorboards_own_reader_finds_windows_phases_devices_and_speedups(folder: Path) -> None:
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason=NO_EXTRA
    )
    (folder / "night.jsonl").write_text(make.results_text(tonight()))
    assert main(["export", "tensorboard", "logs", "night.jsonl"]) == 0
    results = tonight()
    (begun,) = (folder / "logs").iterdir()

    def read(name: str) -> Any:
        (path,) = begun.glob(f"*/{name}")
        accumulator = reader.EventAccumulator(str(path))
        accumulator.Reload()
        return accumulator

    run = next(each for each in results.runs if (each.gpus, each.index) == (4, 1))
    of_run = read("4-gpus-*-run-1")
    steps = run.steps_per_window
    assert steps is not None
    times = of_run.Scalars("step_time_s")
    assert [each.value for each in times] == pytest.approx(
        [window.time_s / steps for window in run.windows]
    )
    assert [each.step for each in times[:2]] == [steps, 2 * steps]
    assert times[0].wall_time == pytest.approx(run.windows[0].started_at_s + run.windows[0].time_s)
    phases = run.windows[0].phases
    assert phases is not None
    backward = of_run.Scalars("phases/backward_s")[0].value
    assert backward == pytest.approx(phases.backward_s / steps)
    tags = of_run.Tags()["scalars"]
    assert sum(tag.startswith("busy_s/") for tag in tags) == 4
    for report, busy_s in zip(
        sorted(run.ranks, key=lambda each: each.rank), run.windows[0].busy_s, strict=True
    ):
        found = of_run.Scalars(f"busy_s/rank_{report.rank}")[0].value
        assert found == pytest.approx(busy_s / steps)
    for counter in IN_A_WINDOW:
        assert sum(tag.startswith(f"{counter}/") for tag in tags) == 4
    speedups = {each.step: each.value for each in read("scaling").Scalars("over_gpus/speedup")}
    points = scaling_points(results.runs)
    assert speedups == {p.key.gpus: pytest.approx(p.speedup.value) for p in points if p.speedup}
    assert main(["export", "tensorboard", "logs", "night.jsonl"]) == 2


# Trace


def test_a_trace_has_every_rank_with_slices_inside_of_each_other(folder: Path) -> None:
    (folder / "night.jsonl").write_text(make.results_text(tonight()))
    assert main(["export", "trace", "night.json", "night.jsonl"]) == 0
    events = json.loads((folder / "night.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    results = tonight()
    assert set(names.values()) == {rank.host for run in results.runs for rank in run.ranks}
    threads: dict[tuple[int, int], list[tuple[int, int, str]]] = {}
    for event in events:
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            place = event["pid"], event["tid"]
            slice_ = event["ts"], event["ts"] + event["dur"], event["name"]
            threads.setdefault(place, []).append(slice_)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert set(threads) == named
    for slices in threads.values():
        open_: list[tuple[int, int, str]] = []
        for begin, end, name in slices:
            while open_ and open_[-1][1] <= begin:
                open_.pop()
            assert not open_ or end <= open_[-1][1], name
            open_.append((begin, end, name))
    drawn = [e for e in events if e["ph"] == "X" and e["name"] == "window"]
    assert len(drawn) == sum(len(run.windows) * len(run.ranks) for run in results.runs)
    window = next(w for run in results.runs for w in run.windows)
    assert drawn[0]["dur"] == pytest.approx(window.time_s * 1e6, abs=1)
    (failed,) = (event for event in events if event["ph"] == "i")
    assert failed["args"]["message"] == KILLED.message
    counters = {e["name"] for e in events if e["ph"] == "C"}
    assert {name.split(",")[0] for name in counters} == {"memory", "power", "utilization"}
