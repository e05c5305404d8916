"""Comparisons whose every word is known, for the tests of reports."""

from collections.abc import Sequence
from typing import Any

from changing import replace

from builders import CNN, measured
from gpuscale.judge.sides import side_of_results
from gpuscale.records import (
    METRICS_BY_NAME,
    Comparison,
    Configuration,
    EntryKey,
    EntryVerdict,
    Estimate,
    Finding,
    MetricSpec,
    MetricVerdict,
    Origin,
    QuantityName,
    Results,
    Scaling,
    Statement,
    Verdict,
)
from gpuscale.records.cause import Cause, CauseKind, Onset, PhaseChange, Remedy
from gpuscale.reports.comparison import View, view_of

PEAK_MEMORY = METRICS_BY_NAME["peak_memory_bytes"]
ALL_REDUCE = Cause(
    kind=CauseKind.COMMUNICATION,
    code="communication",
    share=0.83,
    lost_s=0.014,
    before_s=0.003,
    after_s=0.017,
    onset=Onset(lost_on=(4,), spared_on=(2,), nodes=1, spared_nodes=1),
    ranks=(2,),
    hosts=("node1",),
    device_uuids=("GPU-2",),
    evidence=(PhaseChange(name="communication", before_s=0.003, after_s=0.017),),
    remedy=Remedy("gpu_links"),
)
REASONS = {
    Verdict.OK: Statement.of("bounded_loss", bound=0.029),
    Verdict.CONSISTENT: Statement.of(
        "published_met", published=QuantityName.EFFICIENCY, beside=-0.01, tolerance=0.1
    ),
    Verdict.IMPROVED: Statement.of("moved", throughput=0.08),
    Verdict.REGRESSED: Statement.of(
        "scaling_lost", throughput=-0.078, efficiency=-0.077, reference=-0.001
    ),
    Verdict.INCONSISTENT: Statement.of(
        "published_missed", published=QuantityName.EFFICIENCY, beside=-0.3, tolerance=0.1
    ),
    Verdict.INCONCLUSIVE: Statement.of(
        "loss_not_excluded",
        quantity=QuantityName.EFFICIENCY,
        change=Estimate(value=-0.03, low=-0.08, high=0.02),
        ok_bound=0.05,
        remedy=Statement.of("further_runs", needed=3),
    ),
    Verdict.INCOMPARABLE: Statement.of("other_machine", now="cpu", before="cuda"),
    Verdict.MISSING: Statement.of("not_measured"),
}
NIGHT = Origin(
    files=("night.jsonl",),
    hosts=("node1",),
    jobs=("4739",),
    began_at="2026-11-21T02:00:00+00:00",
    last_at="2026-11-21T02:00:00+00:00",
    fewest_runs=3,
    most_runs=6,
    torch=("2.15.0",),
    driver=("595.12",),
)
_CHANGES = {
    Verdict.OK: Estimate(value=-0.01, low=-0.026, high=0.006),
    Verdict.CONSISTENT: Estimate(value=-0.01, low=-0.05, high=0.03),
    Verdict.IMPROVED: Estimate(value=0.08, low=0.06, high=0.1),
    Verdict.REGRESSED: Estimate(value=-0.077, low=-0.091, high=-0.062),
    Verdict.INCONSISTENT: Estimate(value=-0.3, low=-0.35, high=-0.25),
    Verdict.INCONCLUSIVE: Estimate(value=-0.03, low=-0.08, high=0.02),
}
_FINDINGS = {Verdict.REGRESSED: Finding.SCALING_LOSS, Verdict.IMPROVED: Finding.FASTER}


def entry(
    verdict: Verdict,
    *,
    case: str = "mnist_cnn",
    gpus: int = 4,
    reason: Statement | None = None,
    change: Estimate | None = None,
    configuration: Configuration = CNN,
    finding: Finding | MetricSpec | None = None,
    metrics: Sequence[MetricVerdict] = (),
    causes: Sequence[Cause] = (),
) -> EntryVerdict:
    """A row with this verdict, and with plausible numbers."""
    change = _CHANGES.get(verdict) if change is None else change
    quantity = QuantityName.THROUGHPUT_ON_1 if gpus == 1 else QuantityName.EFFICIENCY
    return EntryVerdict(
        key=EntryKey(case, "ddp", gpus),
        verdict=verdict,
        baseline=pair(0.91, gpus),
        current=pair(None if verdict is Verdict.MISSING else 0.84, gpus),
        finding=finding or _FINDINGS.get(verdict),
        change=change,
        changed_quantity=None if change is None else quantity,
        minimum_detectable_loss=0.023 if verdict.is_judged else None,
        further_runs=3 if verdict is Verdict.INCONCLUSIVE else None,
        reason=REASONS[verdict] if reason is None else reason,
        configuration=replace(configuration, case=case),
        metrics=tuple(metrics),
        causes=tuple(causes),
    )


def told(text: str) -> Statement:
    """A reason that contains a text, which may come from anywhere."""
    return Statement.of("other_measurement", differences=[text])


def noted(text: str) -> Statement:
    """A note that contains a text, which may come from anywhere."""
    return Statement.of("unchecked_training", cases=[text])


def pair(efficiency: float | None, gpus: int) -> Scaling:
    """Speedup and efficiency with an interval of ±0.01."""
    if efficiency is None:
        return Scaling(speedup=None, efficiency=None)
    known = Estimate(value=efficiency, low=efficiency - 0.01, high=efficiency + 0.01)
    return Scaling(speedup=known.scaled(gpus), efficiency=known)


def peak_memory(verdict: Verdict) -> MetricVerdict:
    """The verdict on a peak memory that grew by half."""
    then, now = Estimate(value=2.0**30), Estimate(value=1.5 * 2.0**30)
    rise, metric = Estimate(value=0.5, low=0.48, high=0.52), PEAK_MEMORY
    return MetricVerdict(metric=metric, verdict=verdict, baseline=then, current=now, change=rise)


def comparison(
    *entries: EntryVerdict, notes: Sequence[Statement] = (), name: str = "nightly"
) -> Comparison:
    return Comparison(
        cluster="ARC4",
        baseline_name=name,
        baseline_machine="ARC4, 4× V100 per node",
        current_machine="4× Tesla V100-SXM2-16GB",
        entries=entries,
        notes=tuple(notes),
        before=replace(NIGHT, began_at="2026-11-01T02:00:00+00:00", jobs=("4711",)),
        after=NIGHT,
    )


def of_each_verdict() -> Comparison:
    """A row of every verdict, with causes, metrics and notes; the worst in the middle."""
    return comparison(
        entry(Verdict.OK, gpus=1),
        entry(Verdict.OK, gpus=2, metrics=[peak_memory(Verdict.OK)]),
        entry(Verdict.REGRESSED, metrics=[peak_memory(Verdict.REGRESSED)], causes=[ALL_REDUCE]),
        *(
            entry(verdict, case=f"case_{verdict.value}"[:12])
            for verdict in Verdict
            if verdict not in (Verdict.OK, Verdict.REGRESSED)
        ),
        notes=[Statement.of("rows_selected")],
    )


def view(shown: Comparison, *injections: str) -> View:
    """The comparison as reports get it, of two runs on 1 and on 4 GPUs of 10 s each."""
    made = replace(measured({1: [0.1, 0.1], 4: [0.11, 0.11]}), injections=injections)
    return viewed(shown, made)


def viewed(shown: Comparison, *made: Results) -> View:
    """The comparison as reports get it, of these results."""
    return view_of(shown, side_of_results(made))


def headline(shown: Comparison) -> dict[str, str]:
    """The first lines of the comparison, by their labels."""
    return dict(view(shown).headline)


def advice(shown: View | Comparison) -> str:
    """The steps in the first lines of the comparison, a line each with its label."""
    lines = (shown if isinstance(shown, View) else view(shown)).headline
    first = next(at for at, (label, _) in enumerate(lines) if label == "next")
    return "\n".join(" ".join(line) for line in lines[first:])


def noisy(remedy: str, /, **facts: Any) -> EntryVerdict:
    """An inconclusive row whose reason has this remedy."""
    change = Estimate(value=-0.03, low=-0.08, high=0.02)
    quantity, advice = QuantityName.EFFICIENCY, Statement.of(remedy, **facts)
    reason = Statement.of(
        "loss_not_excluded", quantity=quantity, change=change, ok_bound=0.05, remedy=advice
    )
    return replace(entry(Verdict.INCONCLUSIVE, reason=reason), further_runs=facts.get("needed"))
