"""A whole comparison: match the rows, judge those that can be judged, and say the rest."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from gpuscale.compare.hardware import hardware_label, machine_mismatch
from gpuscale.compare.judgement import Judgement
from gpuscale.compare.matching import Current, Row, currents_of, match
from gpuscale.compare.measured import judge_measured
from gpuscale.compare.notes import notes_of
from gpuscale.compare.published import judge_published
from gpuscale.compare.shapes import baseline_pair, current_pair
from gpuscale.records import Baseline, Comparison, EntryVerdict, Results, Verdict


def compare(
    baseline: Baseline,
    results: Sequence[Results],
    *,
    cases: Collection[str] | None = None,
    gpus: Collection[int] | None = None,
) -> Comparison:
    """The verdict on every row of the results and of the baseline.

    Args:
        baseline: measured runs or published figures of one cluster.
        results: one or several results files, taken together.
        cases: judge only these, each as `mnist_cnn` or `mnist_cnn/ddp`; None is all.
        gpus: judge only these numbers of GPUs; None is all. Runs on 1 GPU still serve as the
            reference of the speedups.
    """
    currents = currents_of(results)
    environments = [result.environment for result in results]
    rows = match(baseline, currents, cases=cases, gpus=gpus)
    mismatch = machine_mismatch(baseline.hardware, environments)
    if mismatch:
        rows = [replace(row, obstacle=Verdict.INCOMPARABLE, reason=mismatch) for row in rows]
    judgements = _reference_alone_is_no_pass(_judgements(rows, baseline, currents))
    entries = tuple(
        _entry(row, judgement, baseline) for row, judgement in zip(rows, judgements, strict=True)
    )
    machines = dict.fromkeys(environment.hardware_label for environment in environments)
    return Comparison(
        baseline_name=baseline.name,
        baseline_machine=hardware_label(baseline.cluster, baseline.hardware),
        current_machine="; ".join(machines) or "no results",
        entries=entries,
        notes=notes_of(baseline, rows, entries, currents, cases),
    )


def _judgements(
    rows: Sequence[Row], baseline: Baseline, currents: Sequence[Current]
) -> list[Judgement]:
    measured = [row for row in rows if row.obstacle is None and row.entry is not None]
    by_measurement = iter(judge_measured(measured, baseline, currents))
    judgements = []
    for row in rows:
        if row.obstacle is not None:
            judgements.append(Judgement(verdict=row.obstacle, reason=row.reason))
        elif row.entry is not None:
            judgements.append(next(by_measurement))
        else:
            judgements.append(judge_published(row, baseline, currents))
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
    )
