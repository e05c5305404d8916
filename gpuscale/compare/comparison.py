"""A whole comparison: match the rows, judge those that can be judged, and say the rest."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from gpuscale.compare.error_rates import ONE_LOOK, ErrorRates
from gpuscale.compare.hardware import hardware_label, machine_mismatch
from gpuscale.compare.judgement import Judgement
from gpuscale.compare.matching import Current, Row, currents_of, match
from gpuscale.compare.measured import judge_measured
from gpuscale.compare.notes import notes_of
from gpuscale.compare.published import judge_published
from gpuscale.compare.shapes import baseline_pair, current_pair
from gpuscale.records import (
    Baseline,
    Comparison,
    Configuration,
    EntryVerdict,
    Results,
    Verdict,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The judged rows of a comparison, before they are put into the words of a record."""

    rows: tuple[Row, ...]
    judgements: tuple[Judgement, ...]
    currents: tuple[Current, ...]


def compare(
    baseline: Baseline,
    results: Sequence[Results],
    *,
    cases: Collection[str] | None = None,
    gpus: Collection[int] | None = None,
    rates: ErrorRates = ONE_LOOK,
) -> Comparison:
    """The verdict on every row of the results and of the baseline.

    Args:
        baseline: measured runs or published figures of one cluster.
        results: one or several results files, taken together.
        cases: judge only these, each as `mnist_cnn` or `mnist_cnn/ddp`; None is all.
        gpus: judge only these numbers of GPUs; None is all. Runs on 1 GPU still serve as the
            reference of the speedups.
        rates: how often this look may err; the usual rates for a comparison made once.
    """
    assessment = assess(baseline, results, cases=cases, gpus=gpus, rates=rates)
    return comparison_of(assessment, baseline, results, entries_of(assessment, baseline), cases)


def comparison_of(
    assessment: Assessment,
    baseline: Baseline,
    results: Sequence[Results],
    entries: Sequence[EntryVerdict],
    cases: Collection[str] | None,
) -> Comparison:
    """The record of these entries, with both machines and what a reader must know beside."""
    machines = dict.fromkeys(result.environment.hardware_label for result in results)
    return Comparison(
        baseline_name=baseline.name,
        baseline_machine=hardware_label(baseline.cluster, baseline.hardware),
        current_machine="; ".join(machines) or "no results",
        entries=tuple(entries),
        notes=notes_of(baseline, assessment.rows, entries, assessment.currents, cases),
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
    currents = currents_of(results)
    rows = match(baseline, currents, cases=cases, gpus=gpus)
    mismatch = machine_mismatch(baseline.hardware, [result.environment for result in results])
    if mismatch:
        rows = [replace(row, obstacle=Verdict.INCOMPARABLE, reason=mismatch) for row in rows]
    judgements = _reference_alone_is_no_pass(_judgements(rows, baseline, currents, rates))
    return Assessment(rows=tuple(rows), judgements=tuple(judgements), currents=currents)


def entries_of(assessment: Assessment, baseline: Baseline) -> tuple[EntryVerdict, ...]:
    """One entry for each row, in order."""
    return tuple(
        _entry(row, judgement, baseline)
        for row, judgement in zip(assessment.rows, assessment.judgements, strict=True)
    )


def _judgements(
    rows: Sequence[Row], baseline: Baseline, currents: Sequence[Current], rates: ErrorRates
) -> list[Judgement]:
    measured = [row for row in rows if row.obstacle is None and row.entry is not None]
    by_measurement = iter(judge_measured(measured, baseline, currents, rates))
    judgements = []
    for row in rows:
        if row.obstacle is not None:
            judgements.append(Judgement(verdict=row.obstacle, reason=row.reason))
        elif row.entry is not None:
            judgements.append(next(by_measurement))
        else:
            judgements.append(judge_published(row, baseline, currents, rates))
    return judgements


def _reference_alone_is_no_pass(judgements: list[Judgement]) -> list[Judgement]:
    """Published rows on 1 GPU pass by definition; a comparison of only those says nothing."""
    judged = [judgement for judgement in judgements if judgement.verdict.is_judged]
    if any(not judgement.is_reference for judgement in judged):
        return judgements
    alone = Judgement(
        verdict=Verdict.INCONCLUSIVE,
        reason="the reference of the speedups says nothing alone; measure on more GPUs too",
    )
    return [alone if judgement.verdict.is_judged else judgement for judgement in judgements]


def _entry(row: Row, judgement: Judgement, baseline: Baseline) -> EntryVerdict:
    return EntryVerdict(
        key=row.key,
        verdict=judgement.verdict,
        baseline=baseline_pair(row, baseline),
        current=current_pair(row),
        finding=judgement.finding,
        change=judgement.change,
        changed_quantity=judgement.changed_quantity,
        minimum_detectable_loss=judgement.minimum_detectable_loss,
        further_runs=judgement.further_runs,
        reason=judgement.reason,
        metrics=judgement.metrics,
        configuration=_configuration(row),
    )


def _configuration(row: Row) -> Configuration | None:
    if row.current is not None:
        return row.current.point.configuration
    return None if row.entry is None else row.entry.configuration
