"""A whole comparison: match the rows, judge those that can be judged, and say the rest."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from gpuscale.compare.decision import ONE_ANALYSIS, ErrorRates
from gpuscale.compare.hardware import hardware_label, machine_mismatch
from gpuscale.compare.judgement import Judgement, too_few_valid_runs
from gpuscale.compare.matching import (
    Entry,
    Row,
    Side,
    known_keys,
    match,
    names_case,
    side_of_baseline,
    side_of_results,
)
from gpuscale.compare.measured import judge_measured
from gpuscale.compare.notes import notes_of
from gpuscale.compare.published import Figures, judge_published, published_speedup
from gpuscale.errors import UsageError
from gpuscale.records import (
    Baseline,
    Comparison,
    Configuration,
    EntryKey,
    EntryVerdict,
    Estimate,
    ReasonCode,
    Results,
    SpeedupPair,
    Statement,
    Verdict,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The judged rows of a comparison, before they are put into the words of a record."""

    rows: tuple[Row, ...]
    judgements: tuple[Judgement, ...]
    before: Side
    after: Side


def compare(
    baseline: Baseline,
    results: Sequence[Results],
    *,
    cases: Collection[str] | None = None,
    gpus: Collection[int] | None = None,
    rates: ErrorRates = ONE_ANALYSIS,
) -> Comparison:
    """The verdict on every row of the results and of the baseline.

    Args:
        baseline: measured runs or published figures of one cluster.
        results: one or several results files, taken together.
        cases: judge only these, each as `mnist_cnn` or `mnist_cnn/ddp`; None is all.
        gpus: judge only these numbers of GPUs; None is all. Runs on 1 GPU still serve as the
            reference of the speedups.
        rates: how often this look may err; the usual rates for a comparison made once.

    Raises:
        UsageError: a case or number of GPUs was asked for that neither side has.
    """
    assessment = assess(baseline, results, cases=cases, gpus=gpus, rates=rates)
    _refuse_unknown(known_keys(baseline, assessment.before, assessment.after), cases, gpus)
    return comparison_of(assessment, baseline, results, entries_of(assessment, baseline))


def _refuse_unknown(
    keys: Collection[EntryKey], cases: Collection[str] | None, gpus: Collection[int] | None
) -> None:
    """Never end with 0 where something that was asked for by name is nowhere."""
    if not keys:
        return
    for name in cases or ():
        if not any(names_case(name, key) for key in keys):
            known = dict.fromkeys(f"{key.case}/{key.strategy}" for key in keys)
            raise UsageError(
                f"the case '{name}' is neither in the baseline nor in the results; "
                f"there are {', '.join(known)}"
            )
    counts = {
        key.gpus for key in keys if cases is None or any(names_case(name, key) for name in cases)
    }
    for count in sorted(set(gpus or ()) - counts):
        raise UsageError(
            f"{count} GPU{'' if count == 1 else 's'}: neither the baseline nor the results have "
            f"such a row; there are {', '.join(map(str, sorted(counts)))}"
        )


def comparison_of(
    assessment: Assessment,
    baseline: Baseline,
    results: Sequence[Results],
    entries: Sequence[EntryVerdict],
) -> Comparison:
    """The record of these entries, with both machines and what a reader must know beside."""
    machines = dict.fromkeys(result.environment.hardware_label for result in results)
    return Comparison(
        baseline_name=baseline.name,
        baseline_machine=hardware_label(baseline.cluster, baseline.hardware),
        current_machine="; ".join(machines) or "no results",
        entries=tuple(entries),
        notes=notes_of(baseline, assessment.rows, entries, assessment.after),
    )


def assess(
    baseline: Baseline,
    results: Sequence[Results],
    *,
    cases: Collection[str] | None,
    gpus: Collection[int] | None,
    rates: ErrorRates,
) -> Assessment:
    """The judgement on every row, without the words around it."""
    before, after = side_of_baseline(baseline), side_of_results(results)
    rows = match(baseline, before, after, cases=cases, gpus=gpus)
    mismatch = machine_mismatch(baseline.hardware, [result.environment for result in results])
    if mismatch:
        rows = [replace(row, obstacle=Verdict.INCOMPARABLE, reason=mismatch) for row in rows]
    judgements = _reference_alone_is_no_pass(_judgements(rows, baseline, before, after, rates))
    judgements = [_no_pass_by_too_few(*pair) for pair in zip(rows, judgements, strict=True)]
    return Assessment(rows=tuple(rows), judgements=tuple(judgements), before=before, after=after)


def entries_of(assessment: Assessment, baseline: Baseline) -> tuple[EntryVerdict, ...]:
    """One entry for each row, in order."""
    figures = {figure.key: figure for figure in baseline.published}
    return tuple(
        _entry(row, judgement, figures)
        for row, judgement in zip(assessment.rows, assessment.judgements, strict=True)
    )


def _judgements(
    rows: Sequence[Row], baseline: Baseline, before: Side, after: Side, rates: ErrorRates
) -> list[Judgement]:
    measured = [row for row in rows if row.obstacle is None and row.before is not None]
    by_measurement = iter(judge_measured(measured, baseline.tolerances, before, after, rates))
    figures = {figure.key: figure for figure in baseline.published}
    judgements = []
    for row in rows:
        if row.obstacle is not None and row.reason is not None:
            judgements.append(Judgement(verdict=row.obstacle, reason=row.reason))
        elif row.before is not None:
            judgements.append(next(by_measurement))
        else:
            judgements.append(judge_published(row, figures, baseline.tolerances, after, rates))
    return judgements


def _reference_alone_is_no_pass(judgements: list[Judgement]) -> list[Judgement]:
    """Published rows on 1 GPU pass by definition; a comparison of only those says nothing."""
    judged = [judgement for judgement in judgements if judgement.verdict.is_judged]
    if any(not judgement.is_reference for judgement in judged):
        return judgements
    alone = Judgement(
        verdict=Verdict.INCONCLUSIVE, reason=Statement.of(ReasonCode.ONLY_SPEEDUP_REFERENCE)
    )
    return [alone if judgement.verdict.is_judged else judgement for judgement in judgements]


def _no_pass_by_too_few(row: Row, judgement: Judgement) -> Judgement:
    """The judgement, which is no pass where most runs gave no number."""
    few = too_few_valid_runs(row.after)
    if few is None or not judgement.verdict.is_pass:
        return judgement
    return Judgement(
        verdict=Verdict.INCONCLUSIVE,
        reason=Statement.of(ReasonCode.TOO_FEW_OF_ALL_RUNS, **few, otherwise=judgement.reason),
        change=judgement.change,
        changed_quantity=judgement.changed_quantity,
        metrics=judgement.metrics,
    )


def _entry(row: Row, judgement: Judgement, figures: Figures) -> EntryVerdict:
    return EntryVerdict(
        key=row.key,
        verdict=judgement.verdict,
        baseline=_pair_before(row, figures),
        current=_pair(row.after),
        finding=judgement.finding,
        change=judgement.change,
        changed_quantity=judgement.changed_quantity,
        minimum_detectable_loss=judgement.minimum_detectable_loss,
        further_runs=judgement.further_runs,
        reason=judgement.reason,
        metrics=judgement.metrics,
        configuration=_configuration(row),
    )


def _pair_before(row: Row, figures: Figures) -> SpeedupPair:
    """Speedup and efficiency that the baseline has for a row, judged or not."""
    if row.before is not None or row.figure is None:
        return _pair(row.before)
    speedup = published_speedup(row.figure, figures)
    if speedup is None:
        return _pair(None)
    known = Estimate(value=speedup)
    return SpeedupPair(speedup=known, efficiency=known.scaled(1 / row.key.gpus))


def _pair(entry: Entry | None) -> SpeedupPair:
    if entry is None:
        return SpeedupPair(speedup=None, efficiency=None)
    return SpeedupPair(speedup=entry.point.speedup, efficiency=entry.point.efficiency)


def _configuration(row: Row) -> Configuration | None:
    entry = row.after or row.before
    return None if entry is None else entry.point.configuration
