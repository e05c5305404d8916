"""Rows that cannot be judged: missing, incomparable, and what they still show."""

import pytest
from builders import (
    CNN,
    baseline,
    cpu_environment,
    environment,
    figure,
    measured,
    published,
    results,
    run,
)
from changing import replace
from statements import known

from gpuscale.base.errors import UsageError
from gpuscale.judge.baseline import baseline_from_results
from gpuscale.judge.compare import compare
from gpuscale.judge.compare.matching import machine_mismatch, same_gpu_model
from gpuscale.judge.sides import baseline_of_results, machine_label, results_of
from gpuscale.records import Comparison, FieldChange, Hardware, Results, Statement, Verdict
from gpuscale.records.configuration import Choice
from gpuscale.reports.reason_words import reason_text
from gpuscale.store.file_formats import decode_baseline, encode_baseline

THEN = {1: [0.100, 0.1003, 0.0998], 2: [0.110, 0.1103, 0.1098]}
NOW = {1: [0.100, 0.1002, 0.0999], 2: [0.110, 0.1102, 0.1099]}
BASELINE = baseline(THEN)
RESNET = replace(CNN, case="resnet50")


def _other_machine(now: str, before: str) -> Statement:
    return Statement.of("other_machine", now=now, before=before)


def _verdicts(comparison: Comparison) -> dict[int, Verdict]:
    return {entry.key.gpus: entry.verdict for entry in comparison.entries}


def test_results_without_a_valid_run_compare_nothing() -> None:
    for nothing in ([], [results()], [measured({1: [None], 2: [None]})]):
        comparison = compare(BASELINE, nothing)
        assert set(_verdicts(comparison).values()) == {Verdict.MISSING}
        assert comparison.exit_code == 4
        assert Statement.of("no_valid_run") in comparison.notes


def test_results_of_which_one_row_failed_serve_the_other_rows_as_a_baseline() -> None:
    before = baseline_of_results([measured({1: THEN[1], 2: [None, None]})], name="monday")
    comparison = compare(before, [measured(NOW)])
    assert _verdicts(comparison) == {1: Verdict.OK, 2: Verdict.MISSING}
    hosts = (replace(environment(), host=host) for host in ("", "node1", "node2"))
    nowhere, one, two = (replace(measured(NOW), environment=where) for where in hosts)
    assert baseline_of_results([one, two], name="tuesday").cluster == "node1"
    unnamed = baseline_of_results([nowhere], name="tuesday")
    assert machine_label(unnamed) == "4× Tesla V100-SXM2-16GB"


def test_a_baseline_stands_for_the_results_of_its_jobs() -> None:
    known = environment(job_id="elsewhere")
    kept = baseline({1: THEN[1]}, allocations=("monday", "tuesday"))
    kept = replace(kept, environments={"tuesday": known})
    monday, tuesday = results_of(kept)
    assert [len(night.runs) for night in (monday, tuesday)] == [2, 1]
    assert [night.allocation for night in (monday, tuesday)] == ["monday", "tuesday"]
    # What the baseline does not say is unknown, but for its hardware.
    where = monday.environment
    assert (where.device, len(where.gpus)) == ("cuda", kept.hardware.gpus_per_node)
    assert where.gpu_names == (kept.hardware.gpu_name,)
    assert tuesday.environment == replace(known, job_id="tuesday")
    assert (monday.created_at[:4], monday.gpuscale_version) == ("1970", "unknown")
    dated = replace(kept, recorded_at="2026-03-01T12:00:00+00:00", gpuscale_version="1.2")
    told = {(night.created_at, night.gpuscale_version) for night in results_of(dated)}
    assert told == {(dated.recorded_at, "1.2")}


def _begun(job_id: str, *moments_s: float | None) -> Results:
    made = measured({1: [0.1] * len(moments_s), 2: [None]}, job_id=job_id)
    *valid, failed = made.runs
    runs = (replace(run, started_at_s=at) for run, at in zip(valid, moments_s, strict=True))
    return replace(made, runs=(*runs, replace(failed, started_at_s=0.0)))


def test_a_side_says_where_and_when_its_valid_runs_were_made() -> None:
    origin = compare(BASELINE, [_begun("b", 2e9 + 9, 2e9), _begun("a", None, 1e9)]).after
    assert (origin.jobs, origin.hosts, origin.torch) == (("a", "b"), ("node1",), ("2.11",))
    # The first and the last run of both jobs, in the zone of the file.
    told = (origin.began_at, origin.last_at, origin.fewest_runs, origin.most_runs)
    assert told == ("2001-09-09T01:46:40+00:00", "2033-05-18T03:33:29+00:00", 4, 4)
    undated = _begun("a", None)
    origin = compare(BASELINE, [undated]).after
    assert origin.began_at == origin.last_at == undated.created_at
    origin = compare(BASELINE, [_begun("a")]).after
    assert (origin.began_at, origin.most_runs, origin.hosts) == (None, None, ("node1",))


def test_a_baseline_without_entries_says_what_to_do() -> None:
    comparison = compare(replace(BASELINE, runs=()), [measured(NOW)])
    assert comparison.exit_code == 4
    assert Statement.of("empty_baseline") in comparison.notes
    assert compare(replace(BASELINE, runs=()), []).exit_code == 4


def test_another_gpu_is_incomparable_and_both_shapes_are_still_shown() -> None:
    elsewhere = replace(measured(NOW), environment=environment("NVIDIA A100-SXM4-40GB"))
    comparison = compare(BASELINE, [elsewhere])
    assert set(_verdicts(comparison).values()) == {Verdict.INCOMPARABLE}
    assert comparison.exit_code == 4
    row = comparison.entries[1]
    assert row.reason == _other_machine("NVIDIA A100-SXM4-40GB", "V100")
    assert known(row.baseline.efficiency).value == pytest.approx(0.909, abs=2e-3)
    assert known(row.current.efficiency).value == pytest.approx(0.909, abs=2e-3)
    assert comparison.current_machine == "4× NVIDIA A100-SXM4-40GB"
    assert comparison.baseline_machine == "ARC4, 4× V100 per node"


def test_a_baseline_that_knows_little_of_its_machine_names_what_it_knows() -> None:
    plain = replace(published(figure(1, time_s=145.0)), cluster="ours")
    for hardware, label in (
        (Hardware(device="cpu", cpu_model="EPYC 7763"), "ours, EPYC 7763"),
        (Hardware(device="cuda", gpu_name="V100", cpu_model="EPYC 7763"), "ours, V100"),
        (Hardware(device="cuda"), "ours"),
    ):
        assert machine_label(replace(plain, hardware=hardware)) == label
    kept = baseline({1: [0.1] * 3})
    (night,) = results_of(
        replace(kept, environments={}, hardware=Hardware(device="cuda", gpu_name="V100"))
    )
    assert [gpu.name for gpu in night.environment.gpus] == ["V100"]


def test_results_of_two_machines_are_not_judged_together() -> None:
    unnamed = replace(BASELINE, hardware=Hardware(device="cuda"))
    other = replace(measured({2: NOW[2]}), environment=environment("NVIDIA H200"))
    comparison = compare(unnamed, [measured({1: NOW[1]}), other])
    assert set(_verdicts(comparison).values()) == {Verdict.INCOMPARABLE}
    mixed = Statement.of("mixed_machines", one="Tesla V100-SXM2-16GB", other="NVIDIA H200")
    assert comparison.entries[0].reason == mixed


@pytest.mark.parametrize(
    "change",
    [
        FieldChange("size", "full", "smoke"),
        FieldChange("precision", "fp32", "bf16"),
        FieldChange("compiled", False, True),
        FieldChange("scaling", "weak", "strong"),
    ],
)
def test_another_configuration_is_incomparable_and_named(change: FieldChange) -> None:
    other = replace(CNN, **{change.name: change.after})
    comparison = compare(BASELINE, [measured(NOW, configuration=other)])
    assert set(_verdicts(comparison).values()) == {Verdict.INCOMPARABLE}
    assert comparison.entries[0].reason.facts["differences"] == (change,)
    assert comparison.exit_code == 4


def test_ranks_that_share_a_gpu_are_not_judged_even_beside_their_like() -> None:
    shared = replace(CNN, ranks_per_gpu=2)
    before, now = baseline(THEN, configuration=shared), measured(NOW, configuration=shared)
    comparison = compare(before, [now])
    assert {entry.reason.code for entry in comparison.entries} == {"shared_gpu"}
    assert comparison.exit_code == 4


def test_another_sample_shape_is_incomparable_and_named_and_an_unknown_one_is_not() -> None:
    wider = replace(run(1, 0.1), sample_shape=(1, 56, 56))
    comparison = compare(BASELINE, [results(wider)])
    assert "(sample shape: 1×28×28 → 1×56×56)" in reason_text(comparison.entries[0])
    unknown = tuple(replace(run, sample_shape=None) for run in BASELINE.runs)
    row = compare(replace(BASELINE, runs=unknown), [measured(NOW)]).entries[1]
    assert row.verdict is Verdict.OK
    assert row.reason.code != "speedup_unknown"


@pytest.mark.parametrize("name", ["mnist_cnn/dp", "mnist_cn"])
def test_a_case_that_neither_side_has_is_refused_with_those_that_there_are(name: str) -> None:
    told = rf"there is no case '{name}' \(did you mean '{name[:8]}.*'\?\); choose from mnist_cnn"
    with pytest.raises(UsageError, match=told):
        compare(BASELINE, [measured(NOW)], Choice(cases=["mnist_cnn", name]))


def test_a_number_of_gpus_that_neither_side_has_is_refused() -> None:
    other = measured({8: [0.2] * 3}, configuration=RESNET)
    with pytest.raises(UsageError, match="--gpus 8: there is no such row; choose from 1, 2"):
        compare(BASELINE, [measured(NOW), other], Choice(cases=["mnist_cnn"], gpus=[1, 2, 8]))


def test_a_case_without_any_of_the_numbers_of_gpus_that_were_asked_for_is_missing() -> None:
    eight = {8: [0.2] * 3}
    runs = (*BASELINE.runs, *baseline(eight, configuration=RESNET).runs)
    now = [measured(NOW), measured(eight, configuration=RESNET)]
    asked = ["mnist_cnn", "resnet50"]
    comparison = compare(replace(BASELINE, runs=runs), now, Choice(cases=asked, gpus=[8]))
    assert [(entry.label, entry.verdict) for entry in comparison.entries] == [
        ("mnist_cnn/ddp on 8 GPUs", Verdict.MISSING),
        ("resnet50/ddp on 8 GPUs", Verdict.OK),
    ]
    assert comparison.entries[0].reason.code == "on_neither_side"
    assert comparison.exit_code == 3


def test_every_configuration_that_only_the_results_have_is_missing_and_named() -> None:
    others = (replace(CNN, precision="bf16"), replace(CNN, compiled=True))
    slow = (measured({2: [0.3] * 3}, configuration=other) for other in others)
    comparison = compare(BASELINE, [measured(NOW), *slow])
    verdicts = [entry.verdict for entry in comparison.entries]
    assert verdicts == [Verdict.OK] * 2 + [Verdict.MISSING] * 2
    alike = [row.reason.facts["differences"] for row in comparison.entries[2:]]
    assert alike == [(("precision", "fp32", "bf16"),), (("compiled", False, True),)]
    assert comparison.exit_code == 3


SAME_GPU = [
    ("A100", "NVIDIA A100-SXM4-40GB"),
    ("V100", "Tesla V100-SXM2-16GB"),
    ("NVIDIA V100 (16 GB)", "Tesla V100-SXM2-16GB"),
    ("A100 SXM", "NVIDIA A100-SXM4-80GB"),
    ("GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 3090 Ti"),
    ("Quadro RTX 6000", "RTX 6000"),
    ("A6000", "NVIDIA RTX A6000"),
    ("A100-PCIE-80GB (300W)", "NVIDIA A100 80GB PCIe"),
    ("A100 PCIe 80 GB", "A100-PCIE-80GB (300W, 1410 MHz)"),
    ("4× A100 (40 GB, PCIe Gen4)", "NVIDIA A100-PCIE-40GB"),
    ("H100 SXM5 80GB (700 W)", "NVIDIA H100 80GB HBM3"),
]
OTHER_GPU = [
    ("H100", "NVIDIA H200"),
    ("V100", "Tesla V100S-PCIE-32GB"),
    ("A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"),
    ("NVIDIA H100 PCIe", "NVIDIA H100 80GB HBM3"),
    ("RTX 3090", "NVIDIA GeForce RTX 3090 Ti"),
    ("RTX 6000", "NVIDIA RTX 6000 Ada Generation"),
    ("A100", "NVIDIA A100-SXM4-40GB MIG 3g.20gb"),
    ("GH200", "H200"),
    ("TITAN V", "NVIDIA TITAN RTX"),
    ("A100-PCIE-80GB (300W)", "NVIDIA A100-PCIE-40GB"),
    ("H100 NVL 94GB (400W)", "NVIDIA H100 80GB HBM3"),
]


@pytest.mark.parametrize(("one", "other"), SAME_GPU + OTHER_GPU)
def test_names_that_can_mean_the_same_gpu_are_told_from_others(one: str, other: str) -> None:
    for pair in ((one, other), (other, one)):
        assert same_gpu_model(*pair) is ((one, other) in SAME_GPU)


def test_models_are_compared_where_both_are_known() -> None:
    assert machine_mismatch(Hardware(device="cuda"), [environment()]) is None
    assert machine_mismatch(Hardware(device="cpu"), [cpu_environment()]) is None
    xeon = Hardware(device="cpu", cpu_model="Xeon  GOLD 6138")
    assert machine_mismatch(xeon, [cpu_environment(None)]) is None
    assert machine_mismatch(xeon, [cpu_environment("Xeon Gold 6138")]) is None
    mismatch = machine_mismatch(xeon, [cpu_environment("EPYC 7742")])
    assert mismatch == _other_machine("EPYC 7742", "Xeon  GOLD 6138")
    # A system by its name, or else by its hardware.
    gpus, booster = Hardware(device="cuda"), Hardware(device="cuda", system="booster")
    mismatch = machine_mismatch(gpus, [replace(environment(), system="arc4")])
    assert mismatch == _other_machine("arc4", "cuda")
    mismatch = machine_mismatch(booster, [environment()])
    assert mismatch == _other_machine("4× Tesla V100-SXM2-16GB", "booster")


def test_what_gpuscale_cannot_measure_is_compared_with_its_like() -> None:
    horovod = replace(CNN, strategy="horovod", device="hpu")

    def ran(factor: float, job: str = "now") -> Results:
        times = {gpus: [time_s * factor for time_s in NOW[gpus]] for gpus in (1, 2)}
        there = replace(environment("HL-225", job_id=job), device="hpu")
        return replace(measured(times, configuration=horovod), environment=there)

    six = replace(ran(1.0), runs=(*ran(1.0).runs, *ran(1.001).runs))
    before = baseline_from_results([six], name="gaudi", cluster="elsewhere")
    assert (before.hardware.device, before.hardware.gpu_name) == ("hpu", "HL-225")
    assert decode_baseline(encode_baseline(before)) == before
    for factor, verdict in ((1.0, Verdict.OK), (1.2, Verdict.REGRESSED)):
        now = ran(factor, "tonight")
        assert set(_verdicts(compare(before, [now])).values()) == {verdict}
        assert compare(BASELINE, [now]).exit_code == 4


def test_gpus_of_another_vendor_are_another_machine() -> None:
    there = environment("AMD Instinct MI250X")
    on_amd = replace(measured(NOW), environment=replace(there, device="rocm"))
    row = compare(BASELINE, [on_amd]).entries[1]
    assert row.reason == _other_machine("rocm", "cuda")
    assert reason_text(row) == "measured on AMD GPUs, the baseline on NVIDIA GPUs"
