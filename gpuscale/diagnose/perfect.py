"""Where the time goes against perfect scaling, for baselines of published figures alone."""

from collections.abc import Iterator, Sequence

from gpuscale.budget import EfficiencyBudget, efficiency_budgets
from gpuscale.records import Cause, CauseKind, Configuration, EntryVerdict, Results
from gpuscale.units import whole_percent

_NAMED_SHARE = 0.1
"""A part with less of the lost efficiency is not named."""

_NAMES = {
    CauseKind.COMMUNICATION: "exposed all-reduce",
    CauseKind.DATA: "data",
    CauseKind.SLOW_RANK: "slowest rank",
}


def causes_against_perfect_scaling(
    entry: EntryVerdict, configuration: Configuration, results: Sequence[Results]
) -> tuple[Cause, ...]:
    """The parts of the lost efficiency, the heaviest first, and that no more can be told.

    A published figure has no phases, so what changed since it was measured stays open.
    """
    budgets = efficiency_budgets([run for result in results for run in result.runs])
    found = [b for b in budgets if (b.configuration, b.key) == (configuration, entry.key)]
    parts = sorted(_parts(found[0]), key=lambda cause: -(cause.share or 0.0)) if found else []
    return (
        *parts,
        Cause(
            kind=CauseKind.NOT_ESTABLISHED,
            headline=CauseKind.NOT_ESTABLISHED.value,
            statement=(
                "published figures hold no phases, so what is different from them cannot be told"
            ),
            next_step=(
                "record a baseline of your own with 'gpuscale baseline record' while all is well"
            ),
        ),
    )


def _parts(budget: EfficiencyBudget) -> Iterator[Cause]:
    lost = 1 - budget.efficiency
    for kind, part in (
        (CauseKind.COMMUNICATION, budget.communication),
        (CauseKind.DATA, budget.data),
        (CauseKind.SLOW_RANK, budget.skew),
    ):
        if part is not None and lost > 0 and part >= _NAMED_SHARE * lost:
            yield Cause(
                kind=kind,
                headline=f"{_NAMES[kind]} {whole_percent(part)} of the step",
                statement=(
                    f"E({budget.key.gpus}) lacks {lost:.2f} to perfect scaling, {part:.2f} of it "
                    "here; how much of that the published figures had too is not known"
                ),
                share=min(1.0, part / lost),
            )
