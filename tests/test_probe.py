"""`gpuscale probe` on this machine, and what a comparison makes of its probes."""

import json
import math
import os
import random
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy
from builders.causes import SLOW, SLOW_LINK, night_of, well
from builders.comparisons import view
from builders.nights import Fault
from changing import replace
from command_line import TWO_CPU_RANKS, gpuscale, python_in, refusal
from measuring import run_gpuscale, run_pytest, write_case
from statements import known

from gpuscale.cli.inputs import read_content
from gpuscale.judge.compare import compare
from gpuscale.judge.diagnose.causes import diagnose
from gpuscale.judge.diagnose.row_evidence import probe_changes
from gpuscale.judge.sides import sides_of
from gpuscale.records import Probe
from gpuscale.records.probes import MATRIX, PAIR, PROBES, SEND, probes_for
from gpuscale.reports.cause_evidence import evidence

DEVICES = [(f"nid{node:04}", gpu) for node in range(4) for gpu in range(4)]
SPREAD, NOISE = 0.01, 0.002


def probed(chance: random.Random, levels: dict[tuple[str, int], float]) -> list[Probe]:
    """Return one probe of each device, whose rates are its level with noise."""
    found = []
    for (host, gpu), level in levels.items():
        rates = tuple(1e13 * level * chance.lognormvariate(0, NOISE) for _ in range(3))
        one = Probe(name=MATRIX, host=host, device=f"GPU {gpu}", rates=rates)
        found.append(replace(one, uuid=f"GPU-{host}-{gpu}"))
    return found


def healthy(chance: random.Random) -> dict[tuple[str, int], float]:
    return {place: chance.lognormvariate(0, SPREAD) for place in DEVICES}


def confirmations(
    before: list[Probe], after: list[Probe], *, fault: Fault = SLOW, kind: str = "computing"
) -> list[str]:
    """Return what a comparison with a slower training says about probes below the cause."""
    rng = np.random.default_rng(7)
    usual = replace(well(rng, [4], deviation=0.003), probes=tuple(before))
    now = replace(night_of(rng, [4], 3, fault, deviation=0.003), probes=tuple(after))
    comparison = diagnose(sides_of(usual, [now]), compare(usual, [now]))
    (cause,) = [c for entry in comparison.entries for c in entry.causes if c.code == kind]
    assert view(comparison).explanations
    return [fact for fact in evidence(cause) if fact.startswith("probe")]


def test_a_slower_gpu_confirms_slower_computing_and_is_named() -> None:
    chance = random.Random(1)
    levels = healthy(chance) | {("nid0003", 3): 1.0}
    before, after = (probed(chance, levels | {("nid0003", 3): level}) for level in (1.0, 0.92))
    (fact,) = confirmations(before, after)
    assert fact.startswith("probe: matrix multiplication −7.")
    assert fact.endswith(" on nid0003 GPU 3: confirms slower computing")


def test_probes_as_in_the_baseline_confirm_nothing_and_absent_ones_say_nothing() -> None:
    chance = random.Random(2)
    levels = healthy(chance)
    before, after = probed(chance, levels), probed(chance, levels)
    assert confirmations(before, after) == ["probes as in the baseline: not confirmed"]
    assert confirmations([], after) == confirmations(before, []) == []


def test_a_probe_of_another_kind_says_nothing_of_a_cause() -> None:
    chance = random.Random(3)
    levels = healthy(chance)
    slower = dict.fromkeys(levels, 0.8)
    before, after = probed(chance, levels), probed(chance, slower)
    assert confirmations(before, after, fault=SLOW_LINK, kind="communication") == []
    sends = ([replace(p, name=SEND, peer="nid9") for p in side] for side in (before, after))
    facts = confirmations(*sends, fault=SLOW_LINK, kind="communication")
    assert len(facts) == 3
    assert all(fact.endswith("confirms slower communication") for fact in facts)


def test_a_device_that_the_baseline_lacks_is_set_beside_all_of_its_devices() -> None:
    chance = random.Random(5)
    before = probed(chance, healthy(chance))
    here = {("nid0042", 0): 0.90, ("nid0042", 1): 0.99}
    slow, alike = probe_changes(before, probed(chance, here))
    assert slow.is_slower
    assert not alike.is_slower
    assert "beside other devices" in confirmations(before, probed(chance, here))[0]


def test_a_device_is_slower_by_more_than_2_percent_and_than_the_others_differ() -> None:
    levels = [1.00, 1.02, 0.98, 1.01]
    one = Probe(name=MATRIX, host="a", device="GPU 0", rates=(1.0,))
    before = [replace(one, device=f"GPU {n}", rates=(r, r)) for n, r in enumerate(levels)]
    logs = [math.log(level) for level in levels]
    half = scipy.stats.t.ppf(0.975, 3) * statistics.stdev(logs) * math.sqrt(1 + 1 / 4)
    for new, is_slower in ((0.93, True), (0.96, False)):
        (change,) = probe_changes(before, [replace(one, host="b", rates=(new, new))])
        expected = math.log(new) - statistics.fmean(logs) + half
        assert known(change.change.high) == pytest.approx(math.expm1(expected))
        assert change.is_slower is is_slower
    # Of a single device in the baseline nothing is known of others; what is known is still judged.
    unlike = replace(one, host="b", rates=(0.9, 0.9))
    (change,) = probe_changes(before[:1], [unlike, before[0]])
    assert change.probe == before[0]
    assert len([*probe_changes(before[:2], [unlike, before[0]])]) == 2
    # Less than 2 percent may be sure and is not worth a word.
    sure = [replace(before[0], rates=(0.985, 0.985))]
    (change,) = probe_changes(before, sure)
    assert known(change.change.high) < 0
    assert not change.is_slower


def test_the_interval_of_a_devices_change_is_that_of_its_repetitions_on_both_sides() -> None:
    rates = (1.0, 1.03, 0.98)
    then = Probe(name=MATRIX, host="a", device="GPU 0", rates=rates)
    now = replace(then, rates=tuple(0.9 * rate for rate in rates))
    (change,) = probe_changes([then], [now])
    deviation = statistics.stdev(map(math.log, rates)) * math.sqrt(1 / 3 + 1 / 3)
    half = scipy.stats.t.ppf(0.975, 4) * deviation
    assert known(change.change.high) == pytest.approx(0.9 * math.exp(half) - 1)


def test_healthy_devices_are_rarely_called_slower() -> None:
    chance, alarms = random.Random(6), 0
    for _ in range(300):
        levels = healthy(chance)
        changes = [*probe_changes(probed(chance, levels), probed(chance, levels))]
        assert len(changes) == len(DEVICES)
        alarms += any(each.change.high < 0 for each in changes if each.change.high is not None)
    # Two-sided at 5% over all devices: half of the alarms are losses.
    assert alarms <= 300 * 0.025 + 3 * math.sqrt(300 * 0.025)


def test_every_probe_confirms_some_cause() -> None:
    assert all(kind.causes for kind in PROBES.values())
    assert MATRIX in probes_for("computing")
    assert probes_for("environment_changed") == ()


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probes")
    (folder / "data").mkdir()
    (folder / "data" / "batch").write_bytes(bytes(100_000))
    asked = ("--device", "cpu", "--seconds", "0.2", "--data-root", "data")
    said = run_gpuscale(folder, "probe", *asked).ended().output
    return folder / said.rstrip().rpartition("kept in ")[2]


def test_a_probe_of_this_machine_keeps_all_that_one_node_has(probes: Path) -> None:
    header = json.loads(probes.read_text())
    names = {probe["name"] for probe in header["probes"]}
    assert names == set(PROBES) - {SEND, PAIR}
    products = [probe for probe in header["probes"] if probe["name"] == MATRIX]
    assert [probe["device"] for probe in products] == ["CPU rank 0", "CPU rank 1"]
    assert all(len(probe["rates"]) == 3 for probe in products)


def test_probes_lie_beside_their_results_and_are_never_overwritten(probes: Path) -> None:
    results, kept = probes.with_name("night.jsonl"), probes.with_name("night.probes.json")
    results.write_bytes(TWO_CPU_RANKS.read_bytes())
    kept.write_bytes(probes.read_bytes())
    assert read_content(results).probes == read_content(kept).probes != ()
    assert "exists already and is not overwritten" in refusal("probe", results)


def test_a_probe_that_is_unknown_is_refused_in_one_line() -> None:
    said = refusal("probe", "--only", "matrix")
    assert said.startswith("gpuscale: --only: there is no 'matrix'; choose from core, ")


@pytest.mark.thorough
def test_a_night_probes_what_a_loss_names_and_says_whether_it_confirms_it(tmp_path: Path) -> None:
    # Step times that hardly depend on what else runs on the machine.
    slow = """
import time
class Case(Tiny):
    def loss(self, output, target):
        time.sleep({})
        return super().loss(output, target)
"""
    measure: tuple[str, ...] = ("test_tiny.py", "--gpus", "1", "--device", "cpu", "--runs", "3")
    measure += ("--run-seconds", "1", "--strategy", "ddp", "-p", "no:cacheprovider")
    write_case(tmp_path, slow.format(0.05))
    assert run_pytest(tmp_path, *measure, "--results", "well.jsonl").exit_code == 0
    before = gpuscale("probe", "well.jsonl", "--seconds", "0.2", cwd=tmp_path)
    assert before.returncode == 0, before.stderr
    record = ("--cluster", "here", "--weak", "--output", "base.json")
    assert gpuscale("baseline", "record", "well.jsonl", *record, cwd=tmp_path).returncode == 0
    write_case(tmp_path, slow.format(0.15))
    words = ("-m", "gpuscale", "night", "here", "1", "measure", *measure, "compare", "base.json")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    night = python_in(tmp_path, *words, PATH=path)
    (folder,) = (tmp_path / ".gpuscale/nightly/here").glob("*_1")
    assert night.returncode == 1, night.stdout
    said = (folder / "comparison.txt").read_text()
    assert "computing" in said
    assert "probe" in said, night.stdout
    kept = {probe.name for probe in read_content(folder / "results.jsonl").probes}
    assert kept == {"core", MATRIX, "memory"}
