"""Tonight judged with the nights before it, through `gpuscale compare --history`."""

import random
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from builders import environment, results, results_text, run
from changing import replace

BEGAN_AT_S = 1.79e9
DAY_S = 86400.0


def write_nights(
    folder: Path, count: int, truth: Callable[[int], float], *, runs: int = 1
) -> list[Path]:
    """Nights that differ by 0.3%, with a step time that the truth multiplies."""
    noise = random.Random(3)
    paths = []
    for night in range(count):
        at_s, of_night = BEGAN_AT_S + DAY_S * night, noise.gauss(1, 0.003)
        made = [
            replace(
                run(gpus, step_time_s * truth(night) * of_night * noise.gauss(1, 0.001), index=i),
                started_at_s=at_s + i,
            )
            for gpus, step_time_s in {1: 0.1, 2: 0.105}.items()
            for i in range(1, runs + 1)
        ]
        its = replace(
            results(*made, where=environment(job_id=str(night))),
            created_at=datetime.fromtimestamp(at_s, UTC).isoformat(),
        )
        paths.append(folder / f"night-{night:03d}" / "results.jsonl")
        paths[-1].parent.mkdir()
        paths[-1].write_text(results_text(its))
    return paths


def compare(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "gpuscale", "compare", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_one_run_a_night_serves_from_the_second_earlier_night_on(tmp_path: Path) -> None:
    nights = write_nights(tmp_path, 5, lambda night: 1.0 if night < 4 else 1.06)
    codes = [compare("--history", tmp_path, night).returncode for night in nights[1:4]]
    assert codes == [3, 0, 0]
    lost = compare("--history", tmp_path, nights[4])
    assert (lost.returncode, "2 of 2 rows: " in lost.stdout) == (1, True)


def test_a_slow_drift_and_a_loss_that_nobody_mended_are_no_pass(tmp_path: Path) -> None:
    (tmp_path / "drift").mkdir()
    drift = write_nights(tmp_path / "drift", 30, lambda night: 1 + 0.004 * max(0, night - 20))
    assert compare("--history", tmp_path / "drift", drift[19]).returncode == 0
    assert compare("--history", tmp_path / "drift", drift[29]).returncode == 1
    (tmp_path / "step").mkdir()
    step = write_nights(tmp_path / "step", 30, lambda night: 1.03 if night >= 15 else 1.0)
    late = compare("--history", tmp_path / "step", step[25])
    assert late.returncode == 1
    assert "less from 2026-" in late.stdout


def test_what_a_history_cannot_be_compared_with_is_said_in_one_line(tmp_path: Path) -> None:
    (first,) = write_nights(tmp_path, 1, lambda night: 1.0)
    for arguments, said in (
        (("--history", tmp_path, first), "no night with a valid run began before"),
        (("--history", tmp_path / "nowhere", first), "there is no such file"),
        ((), "give a baseline or an earlier results file, or --history DIR"),
    ):
        answer = compare(*arguments)
        assert (answer.returncode, answer.stdout) == (2, "")
        assert said in answer.stderr
        assert answer.stderr.count("\n") == 1
