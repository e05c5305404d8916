"""Comparisons whose every word is known, for the tests of reports."""

from collections.abc import Sequence

from changing import replace
from scaling_records import CNN

from gpuscale.records import (
    Cause,
    CauseKind,
    Comparison,
    Configuration,
    EntryKey,
    EntryVerdict,
    Estimate,
    Finding,
    Metric,
    MetricVerdict,
    SpeedupPair,
    Verdict,
)

ALL_REDUCE = Cause(
    kind=CauseKind.COMMUNICATION,
    headline="exposed all-reduce +14 ms",
    statement="gradient synchronisation holds all ranks longer",
    share=0.83,
    lost_s=0.014,
    scope="from 4 GPUs on",
    ranks=(2,),
    hosts=("node1",),
    device_uuids=("GPU-2",),
    evidence=("exposed communication 3.1 ms → 17 ms",),
    next_step="run once with NCCL_DEBUG=INFO",
)
REASONS = {
    Verdict.OK: "any loss is below 2.9 %, with 95 % confidence",
    Verdict.CONSISTENT: "E(4) is 1.0 % below the published figure",
    Verdict.IMPROVED: "the throughput on 4 GPUs rose by 8.0 %",
    Verdict.REGRESSED: "E(4) fell by 7.7 %: the throughput on 4 GPUs fell by 7.8 %",
    Verdict.INCONSISTENT: "E(4) is 30.0 % below the published figure",
    Verdict.INCONCLUSIVE: "E(4) changed by −3.0 %, too uncertain to call",
    Verdict.INCOMPARABLE: "measured on CPU ranks, the baseline on GPUs",
    Verdict.MISSING: "not measured",
}
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
    reason: str | None = None,
    change: Estimate | None = None,
    configuration: Configuration = CNN,
    finding: Finding | None = None,
    metrics: Sequence[MetricVerdict] = (),
    causes: Sequence[Cause] = (),
) -> EntryVerdict:
    """A row with that verdict, and with numbers that go with it."""
    change = _CHANGES.get(verdict) if change is None else change
    return EntryVerdict(
        key=EntryKey(case, "ddp", gpus),
        verdict=verdict,
        baseline=pair(0.91, gpus),
        current=pair(None if verdict is Verdict.MISSING else 0.84, gpus),
        finding=finding or _FINDINGS.get(verdict),
        change=change,
        changed_quantity=None if change is None else "throughput(1)" if gpus == 1 else "E(n)",
        minimum_detectable_loss=0.023 if verdict.is_judged else None,
        further_runs=3 if verdict is Verdict.INCONCLUSIVE else None,
        reason=REASONS[verdict] if reason is None else reason,
        configuration=replace(configuration, case=case),
        metrics=tuple(metrics),
        causes=tuple(causes),
    )


def pair(efficiency: float | None, gpus: int) -> SpeedupPair:
    """Speedup and efficiency with an interval of ±0.01."""
    if efficiency is None:
        return SpeedupPair(speedup=None, efficiency=None)
    known = Estimate(value=efficiency, low=efficiency - 0.01, high=efficiency + 0.01)
    return SpeedupPair(speedup=known.scaled(gpus), efficiency=known)


def peak_memory(verdict: Verdict) -> MetricVerdict:
    """Half as much memory again."""
    return MetricVerdict(
        metric=Metric.PEAK_MEMORY,
        unit="bytes",
        verdict=verdict,
        baseline=Estimate(value=2.0**30),
        current=Estimate(value=1.5 * 2.0**30),
        change=Estimate(value=0.5, low=0.48, high=0.52),
        reason="peak memory grew by 50.0 %",
    )


def comparison(
    *entries: EntryVerdict, notes: Sequence[str] = (), name: str = "nightly"
) -> Comparison:
    """A comparison of these rows."""
    return Comparison(
        baseline_name=name,
        baseline_machine="ARC4, 4× V100 per node",
        current_machine="4× Tesla V100-SXM2-16GB",
        entries=entries,
        notes=tuple(notes),
    )


def of_each_verdict() -> Comparison:
    """A row of every verdict, with causes, metrics and notes; the worst in the middle."""
    return comparison(
        entry(Verdict.OK, gpus=1),
        entry(Verdict.OK, gpus=2, metrics=[peak_memory(Verdict.OK)]),
        entry(
            Verdict.REGRESSED,
            metrics=[peak_memory(Verdict.REGRESSED)],
            causes=[ALL_REDUCE],
        ),
        *(
            entry(verdict, case=f"case_{verdict.value}"[:12])
            for verdict in Verdict
            if verdict not in (Verdict.OK, Verdict.REGRESSED)
        ),
        notes=["the baseline comes from one allocation: intervals are widened"],
    )
