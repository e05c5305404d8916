"""The runs of results, put together as the entries of a baseline."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from gpuscale.errors import UsageError
from gpuscale.evidence import evidence_of
from gpuscale.records import (
    Configuration,
    EntryKey,
    MeasuredEntry,
    MeasuredRun,
    Results,
    Run,
)


class Entry(NamedTuple):
    """What the runs of one entry of a baseline share."""

    configuration: Configuration
    gpus: int

    @property
    def key(self) -> EntryKey:
        """The table row that it belongs to."""
        return EntryKey(self.configuration.case, self.configuration.strategy, self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A valid run, and the allocation that it was made in."""

    run: Run
    allocation: str


def runs_by_entry(results: Sequence[Results]) -> dict[Entry, list[Measured]]:
    """The valid runs of each entry, which may be none, in the order of the results."""
    entries: dict[Entry, list[Measured]] = {}
    for result in results:
        for run in result.runs:
            measured = entries.setdefault(Entry(run.configuration, run.gpus), [])
            if run.is_valid:
                measured.append(Measured(run=run, allocation=result.allocation_of(run)))
    return entries


def measured_entry(
    entry: Entry, measured: Sequence[Measured], entries: Collection[Entry]
) -> MeasuredEntry:
    """The entry that (at least one) valid runs make.

    Args:
        entry: What they share.
        measured: The runs.
        entries: All entries beside it, from which a message has to tell it apart.

    Raises:
        UsageError: the runs differ in batch size or sample shape.
    """
    workloads = Counter((m.run.batch_per_gpu, m.run.sample_shape) for m in measured)
    if len(workloads) > 1:
        found = ", ".join(f"batch {batch} of shape {shape}" for batch, shape in workloads)
        raise UsageError(
            f"{entry_label(entry, entries)} was measured with different samples ({found}); "
            "make one baseline for each"
        )
    ((batch_per_gpu, sample_shape),) = workloads
    return MeasuredEntry(
        configuration=entry.configuration,
        gpus=entry.gpus,
        batch_per_gpu=batch_per_gpu,
        sample_shape=sample_shape,
        runs=tuple(
            MeasuredRun(
                step_time_s=m.run.median_step_time_s,
                allocation=m.allocation,
                evidence=evidence_of(m.run),
            )
            for m in measured
        ),
    )


def entry_label(entry: Entry, entries: Iterable[Entry]) -> str:
    """The entry's name; where other configurations share it, also what tells it apart."""
    configuration, gpus = entry
    label = entry.key.label
    namesakes = [
        other.configuration
        for other in entries
        if other.gpus == gpus and other.configuration.label == configuration.label
    ]
    apart = [
        f"{field.name} {getattr(configuration, field.name)}"
        for field in fields(Configuration)
        if len({getattr(namesake, field.name) for namesake in namesakes}) > 1
    ]
    return f"{label} ({', '.join(apart)})" if apart else label
