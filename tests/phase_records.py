"""Runs whose phases, paces and exposed communication are known, for budget and phase tests."""

from collections.abc import Sequence

from changing import replace
from scaling_records import CNN, run

from gpuscale.records import Configuration, Phases, Run, Window


def phases(
    *,
    data_s: float = 0.0,
    h2d_s: float = 0.0,
    forward_s: float = 0.0,
    backward_s: float = 0.0,
    optimizer_s: float = 0.0,
) -> Phases:
    """Phases of a step; what is not given takes no time."""
    return Phases(
        data_s=data_s,
        h2d_s=h2d_s,
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s,
    )


def phased_run(
    rank_phases: Sequence[Phases],
    *,
    communication_s: float | None = None,
    gpus: int | None = None,
    index: int = 1,
    configuration: Configuration = CNN,
    batch_per_gpu: int = 128,
    devices: Sequence[str] | None = None,
) -> Run:
    """A run whose ranks have these own phases; all wait for the slowest, then communicate.

    Without `communication_s` nothing was measured without synchronisation.
    """
    paces_s = [each.total_s for each in rank_phases]
    added_s = communication_s or 0.0
    step_s = max(paces_s) + added_s
    slowest = rank_phases[paces_s.index(max(paces_s))]
    plain = run(
        gpus or len(rank_phases),
        step_s,
        index=index,
        configuration=configuration,
        batch_per_gpu=batch_per_gpu,
    )
    # Who waits does so in the backward pass.
    waiting = [
        replace(each, backward_s=each.backward_s + step_s - each.total_s) for each in rank_phases
    ]
    several_without_pace = communication_s is None and len(rank_phases) > 1
    ranks = tuple(
        replace(
            report,
            phases=waiting[i],
            pace_s=None if several_without_pace else paces_s[i],
            device_uuids=report.device_uuids if devices is None else (devices[i],),
        )
        for i, report in enumerate(plain.ranks[: len(rank_phases)])
    )
    synced = _window(step_s, slowest, len(ranks), added_s)
    unsynced = () if communication_s is None else (_window(max(paces_s), slowest, len(ranks)),)
    return replace(plain, ranks=ranks, windows=(synced,), unsynced_windows=unsynced)


def _window(time_s: float, own: Phases, ranks: int, communication_s: float = 0.0) -> Window:
    return Window(
        time_s=time_s,
        started_at_s=1.7e9,
        busy_s=(time_s,) * ranks,
        phases=replace(own, backward_s=own.backward_s + communication_s),
    )
