"""Tonight judged with the nights before it, through `gpuscale compare --history`."""

import errno
import gzip
import math
import os
import random
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import environment, results, results_text, run
from builders.nights import Fault, Night, write_night
from changing import replace
from command_line import gpuscale, refusal
from statements import known

from gpuscale.analysis.history import History, history_of
from gpuscale.base.errors import FileError, UsageError
from gpuscale.cli.inputs import read_nights
from gpuscale.judge.compare import compare, with_levels
from gpuscale.judge.compare.earlier import earlier_nights
from gpuscale.judge.sides import baseline_of_results
from gpuscale.records import Comparison, EntryVerdict, QuantityName, Results, Run, Verdict
from gpuscale.reports.figures import FIGURES, Measurements
from gpuscale.reports.history_text import STANDING, notes, render, standings, verdict
from gpuscale.reports.screen import Screen
from gpuscale.store.results import read_results

Truth = Callable[[int], float]
BEGAN_AT_S = 1.79e9
DAY_S = 86400.0


def night_of(job: int, *runs: Run, hours: float) -> Results:
    """Results of a job that began `hours` after the first job; its runs begin a second apart."""
    at_s = BEGAN_AT_S + 3600 * hours
    begun = (replace(run, started_at_s=at_s + second) for second, run in enumerate(runs))
    made = results(*begun, where=environment(job_id=str(job)))
    return replace(made, created_at=datetime.fromtimestamp(at_s, UTC).isoformat())


def made_nights(
    count: int, truth: Truth, *, runs: int = 1, on_2: Truth = lambda night: 1.0
) -> list[Results]:
    """Nights that differ by 0.3%, with step times that the truth multiplies, and on 2 GPUs more."""
    noise, nights = random.Random(3), []
    for night in range(count):
        of_night = noise.gauss(1, 0.003) * truth(night)
        times_s = {1: 0.1 * of_night, 2: 0.105 * of_night * on_2(night)}
        made = [
            run(gpus, time_s * noise.gauss(1, 0.001), index=index)
            for gpus, time_s in times_s.items()
            for index in range(1, runs + 1)
        ]
        nights.append(night_of(night, *made, hours=24 * night))
    return nights


def write_nights(folder: Path, count: int, truth: Truth, **more: Any) -> list[Path]:
    paths = [folder / f"night-{night:03d}" / "results.jsonl" for night in range(count)]
    for path, night in zip(paths, made_nights(count, truth, **more), strict=True):
        path.parent.mkdir(parents=True)
        path.write_text(results_text(night))
    return paths


def changed(path: Path, change: Callable[[Results], Results]) -> None:
    path.write_text(results_text(change(read_results(path))))


def moved(results: Results, days: float) -> Results:
    """The results, dated by a clock that was off by this number of days."""
    at = datetime.fromisoformat(results.created_at) + timedelta(days=days)
    later_s = DAY_S * days
    runs = (replace(run, started_at_s=known(run.started_at_s) + later_s) for run in results.runs)
    return replace(results, created_at=at.isoformat(), runs=tuple(runs))


def test_one_run_a_night_serves_from_the_third_earlier_night_on(tmp_path: Path) -> None:
    nights = write_nights(tmp_path, 5, lambda night: 1.0 if night < 4 else 1.06)
    judged = [gpuscale("compare", "--history", tmp_path, night) for night in nights[1:4]]
    assert [each.returncode for each in judged] == [3, 3, 0]
    assert " next compare again after more nights; " in " ".join(judged[0].stdout.split())
    lost = gpuscale("compare", "--history", tmp_path, nights[4])
    assert (lost.returncode, "2 of 2 rows: " in lost.stdout) == (1, True)
    unnamed = gpuscale("compare", "--history", tmp_path)
    assert (unnamed.returncode, "last night" in unnamed.stderr) == (1, True)
    assert "job 4, 1 run a row" in " ".join(unnamed.stdout.split())


def one_run_a_night(step_times_s: Sequence[float], *, gpus: int = 1) -> list[Results]:
    runs = (run(gpus, time_s) for time_s in step_times_s)
    return [night_of(night, each, hours=24 * night) for night, each in enumerate(runs)]


def compared_on_night(nights: Sequence[Results], at: int) -> Comparison:
    earlier = earlier_nights(nights[:at], [nights[at]])
    before = baseline_of_results(earlier.last, name="nights")
    before = replace(before, tolerances=earlier.tolerances)
    return with_levels(compare(before, [nights[at]]), earlier)


def judged_on_night(nights: Sequence[Results], at: int) -> EntryVerdict:
    return compared_on_night(nights, at).entries[0]


def nights_with_a_step(factor: float, seed: int) -> list[Results]:
    """Eleven nights of three runs on 1 and 2 GPUs, whose steps take longer from the sixth on."""
    rng = np.random.default_rng(seed)
    nights = []
    for number in range(11):
        level_s = 0.042 * (factor if number > 4 else 1.0)
        of_night = [rng.normal(1, deviation) for deviation in (0.025, 0.015)]
        runs = [
            run(gpus, level_s * share * its * rng.normal(1, 0.01), index=index)
            for gpus, share, its in zip((1, 2), (1.0, 1.1), of_night, strict=True)
            for index in (1, 2, 3)
        ]
        nights.append(night_of(number, *runs, hours=24 * number))
    return nights


@pytest.mark.parametrize("factor", [1.24, 0.8])
def test_an_efficiency_before_is_of_one_level_whichever_row_changed_first(factor: float) -> None:
    machines = (nights_with_a_step(factor, seed) for seed in range(12))
    rows = (compared_on_night(each, at).entries[1] for each in machines for at in range(6, 11))
    found = [known(row.baseline).efficiency for row in rows]
    # A loss that is told by its level is shown without an efficiency.
    efficiencies = [efficiency.value for efficiency in found if efficiency is not None]
    assert len(efficiencies) >= 12
    assert efficiencies == pytest.approx([1 / 1.1] * len(efficiencies), abs=0.06)


def test_the_deviation_of_nights_is_that_of_earlier_levels_until_four_are_on_the_new_one() -> None:
    # Logarithms of T(1) and T(2), in percent: the levels' means are 0 and −30.
    on_1 = [2.0, -2.0, 2.0, -2.0, 0.0, -30.0, -30.0, -30.0, -30.0, -30.0]
    on_2 = [2.0, -2.0, 2.0, -2.0, 5.0, -30.0, -30.0, -30.0, -30.0, -30.0]

    def overrides(nights: int, percent: float = 0.01) -> dict[tuple[int, str], float]:
        logs = on_1[: nights + 1], on_2[: nights + 1]
        times_s = [[math.exp(log * percent) for log in of_gpus] for of_gpus in logs]
        *earlier, last = (
            night_of(at, run(1, one_s), run(2, two_s), hours=24 * at)
            for at, (one_s, two_s) in enumerate(zip(*times_s, strict=True))
        )
        found = earlier_nights(earlier, [last]).tolerances.overrides
        names = [(known(each.gpus), known(each.metric)) for each in found]
        return dict(zip(names, (known(each.allocation_deviation) for each in found), strict=True))

    # Sums of squares 16 and 36, and 20 of T(2) / T(1), over 5 + 2 nights less 2 levels.
    squares = {(1, "throughput"): 16, (2, "throughput"): 36, (2, "speedup"): 20}
    expected = {name: math.sqrt(total / 5) / 100 for name, total in squares.items()}
    assert overrides(7) == pytest.approx(expected)
    assert overrides(8).keys() == overrides(7).keys()
    assert overrides(9) == {}
    # Three nights of one level are too few, and no deviation is larger than a half.
    assert overrides(3) == {}
    assert set(overrides(7, percent=1.0).values()) == {0.5}


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_lasting_loss_is_of_throughput_on_its_gpus(gpus: int) -> None:
    quantity = QuantityName.THROUGHPUT_ON_1 if gpus == 1 else QuantityName.THROUGHPUT
    times_s = [0.1, 0.1001, 0.0999] * 3 + [0.12, 0.1201, 0.1199] * 4
    row = judged_on_night(one_run_a_night(times_s, gpus=gpus), len(times_s) - 1)
    assert (row.verdict, row.changed_quantity) == (Verdict.REGRESSED, quantity)
    assert known(row.change).value == pytest.approx(1 / 1.2 - 1, abs=0.001)
    assert row.since == "2026-09-30"


def test_a_lasting_loss_is_found_on_each_of_seven_nights() -> None:
    # One row and one run a night of 2% deviation, 60 machines; 12% lost from the sixth night on.
    rng = random.Random(8)
    found = [0] * 12
    for _ in range(60):
        times = [0.1 * math.exp(rng.gauss(0, 0.02)) / (0.88 if i >= 5 else 1) for i in range(12)]
        nights = one_run_a_night(times)
        for at in range(5, 12):
            found[at] += judged_on_night(nights, at).verdict is Verdict.REGRESSED
    # Had slow nights stayed in the reference: 28 to 40 of 60 from the seventh night on.
    assert min(found[5:]) >= 48


def test_a_loss_that_was_made_good_in_part_is_still_one_and_one_made_good_slowly_is_none() -> None:
    def samples_per_s(*rates: tuple[int, float]) -> History:
        noise = random.Random(5)
        each = [rate for count, rate in rates for _ in range(count)]
        return history_of(one_run_a_night([noise.gauss(10, 0.02) / rate for rate in each]))

    (partly,) = samples_per_s((15, 100), (10, 90), (8, 93)).rows
    assert known(partly.recent_loss).throughput.value == pytest.approx(-0.07, abs=0.005)
    slowly = samples_per_s((15, 100), (15, 96), *((1, 96 + i / 9) for i in range(1, 46)))
    assert (slowly.rows[0].lost, slowly.rows[0].changes[-1].is_loss) == (None, False)
    assert [line for line in render(slowly, Screen()).splitlines() if "faster" in line]


def test_a_night_reads_the_same_in_the_history_and_in_the_comparison() -> None:
    # A step, a night that is far from all others, and one without the row on 2 GPUs.
    truth = [1.05] * 8 + [1.0] * 14
    truth[16] = 1.3
    nights = made_nights(22, truth.__getitem__)
    nights[18] = replace(nights[18], runs=nights[18].runs[:1])
    history = history_of(nights)
    (picture,) = filter(None, [FIGURES["history"](Measurements(history=history))])
    # Of the row on 1 GPU: E may be what another one is judged by.
    row, compared = history.rows[0], judged_on_night(nights, 21)
    assert compared.changed_quantity == QuantityName.THROUGHPUT_ON_1
    assert row.departure == pytest.approx(known(compared.change).value)
    axes = picture.figure.axes[0]
    dots: Any = next(line for line in axes.lines if line.get_label() == "night")
    now = known(known(compared.current).samples_per_s).value
    assert dots.get_ydata()[-1] == pytest.approx(now) == known(row.last.samples_per_s).value


def test_a_history_says_how_the_comparison_judges_its_last_night(tmp_path: Path) -> None:
    # In the first folder by so little that it may be noise.
    for folder, factor, judged in (
        ("noise", 1.015, "ok by compare --history: 2 of 2 rows: no loss of "),
        ("loss", 1.2, "REGRESSED by compare --history: 2 of 2 rows: every GPU lost "),
    ):
        nights = tmp_path / folder
        write_nights(nights, 13, [*[1.0] * 12, factor].__getitem__)
        head = " ".join(gpuscale("history", nights).stdout.split())
        assert head.startswith("UNUSUAL 2 of 2 rows unusual on the last night")
        assert f"judged {judged}" in head
        told = " ".join(gpuscale("compare", "--history", nights).stdout.split())
        assert told.startswith(judged.replace("by compare --history: ", ""))
    nights = tmp_path / "varied"
    write_nights(nights, 5, [1.0, 1.2, 0.8, 1.3, 3.0].__getitem__)
    head = " ".join(gpuscale("history", nights).stdout.split())
    assert head.startswith("UNCLEAR")
    assert " by compare --history: " in head
    usual = sorted((tmp_path / "loss").iterdir())[:-1]
    head = " ".join(gpuscale("history", *usual).stdout.split())
    assert " judged ok by compare --history: 2 of 2 rows: no loss of " in head


@pytest.mark.parametrize(("count", "onset"), [(4, 2), (5, 3), (13, 12)])
def test_a_change_among_the_last_nights_is_named_beside_a_loss(
    tmp_path: Path, count: int, onset: int
) -> None:
    write_nights(tmp_path, count, lambda night: 1.25 if night >= onset else 1.0, runs=3)
    paths = sorted(tmp_path.rglob("*.jsonl"))
    for night, path in enumerate(paths):
        digest = "1b" if night >= onset else "0a"
        made, where = read_results(path), environment(job_id=str(night))
        where = replace(where, scripts={"train.py": digest})
        path.write_text(results_text(replace(made, environment=where)))
    day = f"{datetime.fromtimestamp(BEGAN_AT_S + DAY_S * onset, UTC):%Y-%m-%d}"
    told = " ".join(gpuscale("compare", "--history", tmp_path).stdout.split())
    on = "" if onset == count - 1 else f"on {day}: "
    assert f" changed {on}script train.py 0a → 1b " in told
    assert told.count("script train.py 0a → 1b") == 1 + told.count("changed: script train.py")
    # Among five nights, the first slow one may be an odd one.
    verdict = "INCONCLUSIVE" if count == 5 else "REGRESSED"
    assert told.startswith(f"{verdict} 2 of 2 rows")
    assert (" next measure again with the change undone" in told) == (count != 5)
    history = " ".join(gpuscale("history", tmp_path).stdout.split())
    assert f" judged {verdict} by compare --history: 2 of 2 rows: " in history
    assert f" changed on {day}: script train.py 0a → 1b" in history


@pytest.mark.parametrize("slower", [0.0, 0.25])
def test_a_change_among_the_last_nights_is_no_note_on_rows_that_pass(slower: float) -> None:
    nights = made_nights(13, lambda night: 1 + slower * (night == 12), runs=3)
    for at, night in enumerate(nights):
        where = replace(night.environment, scripts={"train.py": "1b" if at >= 10 else "0a"})
        nights[at] = replace(night, environment=where)
    codes = {note.code for note in compared_on_night(nights, 12).notes}
    assert ("recently_changed" in codes) is (slower > 0)


def history_of_rates(samples_per_s: Sequence[float]) -> History:
    return history_of(one_run_a_night([128 / rate for rate in samples_per_s]))


def test_nights_that_differ_much_are_not_called_steady() -> None:
    wild = history_of_rates([146, 47, 148, 166, 245, 210, 55, 38, 60])
    word, text = verdict(wild) or ("", "")
    assert word == "UNCLEAR"
    assert "vary so much that two more show only losses above 96 %: " in text
    quiet = history_of_rates([100, 101, 99, 100, 102, 100, 99, 101, 100])
    assert (verdict(quiet) or ("",))[0] == "STEADY"


@pytest.mark.parametrize(
    ("samples_per_s", "standing", "word"),
    [
        ([251, 261, 582, 576], "too few nights", None),
        ([251, 261, 309, 582, 576], "+74.8 %", "UNCLEAR"),
        ([251, 261, 309, 582, 576, 586], "+59.1 %", "UNCLEAR"),
        # The last night shows the step; from then on it is compared with those after it.
        ([251, 261, 309, 582, 576, 586, 568], "−2.3 %, new level", "STEADY"),
        ([251, 261, 582, 576, 586, 568], "−2.3 %, new level", "STEADY"),
        ([251, 261, 582, 576, 586, 568, 580], "+0.4 %", "STEADY"),
        ([250, 251, 252, 250, 300, 301, 400], "+33.1 %, new level", "UNCLEAR"),
    ],
)
def test_few_nights_say_no_more(samples_per_s: list[int], standing: str, word: str | None) -> None:
    history = history_of_rates(samples_per_s)
    assert [row[STANDING].text for row in standings(history)] == [standing]
    said = verdict(history)
    assert (said and said[0]) == word
    assert not any("far from" in note for note in notes(history))
    (picture,) = filter(None, [FIGURES["history"](Measurements(history=history))])
    (axes,) = picture.figure.axes
    assert ("UNCLEAR" in axes.get_title(loc="left")) == (word == "UNCLEAR")
    drawn: list[Any] = [line for line in axes.lines if line.get_label() == "level"]
    levels = [line.get_ydata()[0] for line in drawn]
    assert len(levels) == len(history.rows[0].changes) + (word == "STEADY")
    # No level lies where no night does.
    assert all(min(abs(level / rate - 1) for rate in samples_per_s) < 0.05 for level in levels)


def test_a_history_says_what_a_comparison_finds_and_marks_no_usual_night(tmp_path: Path) -> None:
    # As a user measured them; the last two nights had a real loss.
    on_1 = (10.65, 11.05, 10.27, 10.07, 10.0, 9.85, 14.11, 14.78)
    on_2 = (15.4, 14.8, 14.89, 15.77, 14.31, 15.1, 19.43, 18.26)
    for night, (one, two) in enumerate(zip(on_1, on_2, strict=True)):
        runs = [run(n, ms / 1e3, index=i) for n, ms in ((1, one), (2, two)) for i in (1, 2, 3)]
        text = results_text(night_of(night, *runs, hours=24 * night))
        (tmp_path / f"{night}.jsonl").write_text(text)
    told = " ".join(gpuscale("history", tmp_path).stdout.split())
    assert told.startswith("SLOWER 1 of 2 rows from 2026-09-27 on")
    assert " judged REGRESSED by compare --history: 2 of 2 rows: " in told
    assert told.endswith("few nights to tell whether the level changed: mnist_cnn/ddp on 2 GPUs")
    assert "−4.5 %, new level" in told
    assert "far from the other nights" not in told
    files = sorted(tmp_path.iterdir())
    steady = gpuscale("history", *files[:6]).stdout
    assert "far from the other nights" not in steady


def test_a_worse_scaling_is_named_beside_a_history_whose_rows_are_slower(tmp_path: Path) -> None:
    scaling = [1.0] * 10 + [1.2] * 2
    write_nights(tmp_path, 12, lambda night: 1.0, runs=3, on_2=scaling.__getitem__)
    told = " ".join(gpuscale("history", tmp_path).stdout.split())
    assert told.startswith("SLOWER 1 of 2 rows")
    assert " judged REGRESSED by compare --history: 1 of 2 rows: scaling got worse" in told


def test_a_history_without_a_name_is_that_of_the_only_machine_s_nights(tmp_path: Path) -> None:
    nightly = tmp_path / ".gpuscale" / "nightly"
    first, *_ = write_nights(nightly / "here", 3, lambda night: 1.0)
    answer = gpuscale("history", cwd=tmp_path)
    assert "3 nights" in answer.stdout
    assert "the nights below .gpuscale/nightly/here, since no results are given" in answer.stderr
    (nightly / "there").mkdir()
    several = gpuscale("history", cwd=tmp_path)
    assert several.returncode == 2
    assert "machine: .gpuscale/nightly/here, .gpuscale/nightly/there" in several.stderr
    session = tmp_path / ".gpuscale" / "results"
    session.mkdir()
    (session / "a.jsonl").write_bytes(first.read_bytes())
    answer = gpuscale("history", cwd=tmp_path)
    assert "1 night" in answer.stdout
    told = "the results below .gpuscale/results; nights are below .gpuscale/nightly"
    assert told in answer.stderr


def test_a_night_to_judge_may_be_given_by_its_folder(tmp_path: Path) -> None:
    nights = write_nights(tmp_path, 8, lambda night: 1.0)
    judged = (nights[6], nights[6].parent)
    by_file, by_folder = (gpuscale("compare", "--history", tmp_path, path) for path in judged)
    assert by_folder.returncode == by_file.returncode
    assert by_folder.stdout == by_file.stdout


def test_a_night_that_the_verdict_leaves_out_is_not_drawn_beside_it_either(tmp_path: Path) -> None:
    paths = []
    for day in range(8):
        fault = Fault(computing=1.5 if day == 3 else 1.0)
        made = Night(job=f"{day}", day=day, gpus=(1, 2), fault=fault)
        paths.append(tmp_path / f"2096-03-0{day + 1}_{day}" / "results.jsonl")
        write_night(paths[-1], made)
    page, base, picture = (tmp_path / name for name in ("page.html", "base.json", "phases.svg"))
    told = gpuscale("compare", "--history", tmp_path).stdout
    assert "left out of the baseline: 2096-03-04_3, where" in " ".join(told.split())
    was = re.findall(r"  ([\d.]+) → [\d.]+ ms", told)
    assert gpuscale("report", "--history", tmp_path, "-o", page).returncode == 0
    assert re.findall(r"baseline: ([\d.]+) ms", page.read_text()) == was
    gpuscale("baseline", "record", *paths[:-1], "-o", base, "--cluster", "x", "--weak")
    assert "in comparisons, left out of the baseline: 3, where" in gpuscale("show", base).stdout
    gpuscale("plot", paths[-1], "--baseline", base, "--figure", "phases", "-o", picture)
    assert "without 6 outlying runs of the baseline" in picture.read_text()


def test_a_bad_night_among_a_few_is_named_where_it_blinds_the_others(tmp_path: Path) -> None:
    write_nights(tmp_path, 5, lambda night: 1.3 if night == 3 else 1.0, runs=3)
    bad = read_results(tmp_path / "night-003" / "results.jsonl").created_at[:10]
    judged = " ".join(gpuscale("compare", "--history", tmp_path).stdout.split())
    assert judged.startswith("INCONCLUSIVE 2 of 2 rows")
    assert "leave out any that 'gpuscale history' calls far from the others" in judged
    told = " ".join(gpuscale("history", tmp_path).stdout.split())
    assert told.startswith("UNCLEAR")
    assert told.endswith(f"far from the other nights of their level: {bad}")
    gpuscale("leave-out", tmp_path / "night-003", "--because", "a neighbour")
    assert gpuscale("compare", "--history", tmp_path).returncode == 0


def test_nights_within_a_minute_are_told_apart_by_their_seconds() -> None:
    first, second, third, fourth = one_run_a_night([0.1] * 4)
    third = moved(third, 90 / DAY_S - 2)
    history = history_of([first, moved(second, 5 / DAY_S - 1), third, fourth])
    of_one_date = ["2026-09-21 14:13:20", "2026-09-21 14:13:25", "2026-09-21 14:14:50"]
    assert history.names == [*of_one_date, "2026-09-24"]
    bad = replace(third, left_out="a sleep")
    assert history_of([first, bad]).left_out == ("2026-09-21 14:14 (a sleep)",)


def test_what_a_history_cannot_be_compared_with_is_said_in_one_line(tmp_path: Path) -> None:
    (first,) = write_nights(tmp_path, 1, lambda night: 1.0)
    for arguments, said in (
        (("--history", tmp_path, first), "no night with a valid run began before"),
        (("--history", tmp_path / "nowhere", first), "No such file or directory"),
        ((), "give a baseline or an earlier results file, or --history DIR"),
    ):
        assert said in refusal("compare", *arguments)


def test_a_night_whose_clock_was_wrong_has_no_night_before_it(tmp_path: Path) -> None:
    nights = write_nights(tmp_path, 12, lambda night: 1.0)
    # A clock that went back by years for a night.
    changed(nights[6], lambda its: moved(its, -8000))
    assert "12 nights" in gpuscale("history", tmp_path).stdout
    alone = gpuscale("compare", "--history", tmp_path, nights[6])
    assert alone.returncode == 2
    assert "; 11 nights began later: judge one of these" in alone.stderr.splitlines()[-1]
    # Nor is one that began at the same moment before it.
    first, second = one_run_a_night([0.1] * 2)
    with pytest.raises(UsageError, match="; 1 night began later"):
        earlier_nights([first], [moved(second, -1)])


def test_a_night_cut_short_leaves_what_it_measured(tmp_path: Path) -> None:
    nights = write_nights(tmp_path, 8, lambda night: 1.0)
    # One ended before its last row, one while it wrote it.
    changed(nights[2], lambda its: replace(its, runs=its.runs[:1]))
    nights[5].write_text(nights[5].read_text()[:-40])
    (tmp_path / "night-099").mkdir()
    shown = gpuscale("history", tmp_path)
    assert shown.returncode == 0
    assert "7 nights" in shown.stdout
    assert shown.stderr.count("\n") == 1
    assert "night-005" in shown.stderr
    assert "cut short" in shown.stderr
    empty = gpuscale("history", tmp_path / "night-099")
    assert (empty.returncode, empty.stderr.count("\n")) == (2, 1)


def test_what_cannot_be_read_below_a_folder_is_named_and_links_are_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nights = write_nights(tmp_path, 5, lambda night: 1.0)
    folder, elsewhere = tmp_path / "nights", tmp_path / "elsewhere"
    folder.mkdir()
    for night in nights[:3]:
        night.parent.rename(folder / night.parent.name)
    elsewhere.mkdir()
    nights[3].parent.rename(elsewhere / "night-003")
    (folder / "night-003").symlink_to(elsewhere / "night-003")
    (folder / "latest").symlink_to("night-002")
    (folder / "up").symlink_to("..")
    packed = folder / "night-005.jsonl.gz"
    packed.write_bytes(gzip.compress(b"{}"))
    closed = folder / "night-006"
    closed.mkdir()
    scandir = os.scandir

    def guarded(path: str | int) -> Any:
        if str(path) == str(closed):
            # As for anybody but root.
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr("os.scandir", guarded)
    read = read_nights([folder])
    assert [len(its.runs) for its in read] == [2, 2, 2, 2]
    packing = "byte 2: is not UTF-8 text; unpack it, or save it as UTF-8"
    assert capsys.readouterr().err.splitlines() == [
        f"gpuscale: left out: {closed}: Permission denied",
        f"gpuscale: left out: {packed}:1: {packing}",
    ]
    with pytest.raises(FileError, match="File name too long"):
        read_nights([Path("x" * 300)])


def test_overlapping_paths_count_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nights = write_nights(tmp_path, 3, lambda night: 1.0)
    for paths in ([nights[2], tmp_path], [tmp_path, nights[2]], [tmp_path, tmp_path]):
        assert sorted(len(its.runs) for its in read_nights(paths)) == [2, 2, 2]
    assert capsys.readouterr().err == ""
    (tmp_path / "copy.jsonl").write_bytes(nights[2].read_bytes())
    read_nights([nights[2], tmp_path])
    assert capsys.readouterr().err == "gpuscale: left out: 2 repeated runs; each counts once\n"


def test_the_table_shows_the_levels_that_a_lasting_loss_rests_on(tmp_path: Path) -> None:
    # Three nights at 204 ms, then two at 236 ms on the same day, and 236 ms tonight: the mean of
    # the nights compared with is neither level.
    hours = (203.0, 204.0, 204.0, 235.0, 236.0, 236.0)
    for hour, step_ms in enumerate(hours):
        shares = ((gpus, share, i) for gpus, share in ((1, 1.0), (2, 1.02)) for i in (1, 2, 3))
        runs = [run(gpus, step_ms / 1000 * share, index=i) for gpus, share, i in shares]
        (tmp_path / f"{hour}.jsonl").write_text(results_text(night_of(hour, *runs, hours=hour)))
    shown = gpuscale("compare", "--history", tmp_path).stdout
    assert "204 → 236 ms" in shown, shown[:900]
    # The efficiency before the loss is not that of the nights compared with.
    assert "– → 0.98" in shown
    onset = f"{datetime.fromtimestamp(BEGAN_AT_S + 3 * 3600, UTC):%Y-%m-%d %H:%M}"
    assert f"from {onset} on" in " ".join(shown.split("\nbaseline ")[0].split())
    assert "not excluded" not in shown
