"""A comparison in order and in words, made once: what every report format renders."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuscale.records import (
    Cause,
    Comparison,
    Configuration,
    EntryKey,
    EntryVerdict,
    QuantityName,
    Results,
    Verdict,
)
from gpuscale.report.cause_words import evidence, next_step, whole_line
from gpuscale.report.phrases import (
    OUTCOMES,
    deciding_metric,
    gpus_text,
    injection_note,
    injections_of,
    metric_text,
    set_apart,
    short_reason,
)
from gpuscale.report.reason_words import reason_text, statement_text
from gpuscale.report.screen import Screen

_NAMED_SUBJECTS = 3

_Measured = tuple[EntryKey, Configuration | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseView:
    """A cause in words."""

    line: str
    """`exposed all-reduce +14 ms (83 % of the loss): gradient synchronisation …`."""
    evidence: tuple[str, ...]
    next_step: str
    """The next step in full; empty where nothing is left to find out."""
    next_step_once: str
    """The same, or the row that says it already: `as for mnist_cnn/ddp on 2 GPUs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An entry under a name that no other row of its number of GPUs has."""

    entry: EntryVerdict
    name: str
    """`mnist_cnn/ddp`, with options where that alone is ambiguous."""
    reason: str
    """One sentence that a tired person understands."""
    short_reason: str
    """The same in a few words; empty where there is nothing to say."""
    lost_metrics: tuple[str, ...]
    """The metrics that got worse, but for the one that the reason is about."""
    causes: tuple[CauseView, ...]
    wall_s: float
    """How long its runs took, start-up and failed runs included."""

    @property
    def gpus(self) -> str:
        """`1 GPU` or `4 GPUs`."""
        return gpus_text(self.entry.key.gpus)

    @property
    def label(self) -> str:
        """`mnist_cnn/ddp on 4 GPUs`."""
        return f"{self.name} on {self.gpus}"

    def details(self, *, once: bool = False) -> Iterator[str]:
        """The lines below the reason, indented: the lost metrics and the numbered causes.

        Args:
            once: Refer to a next step that another row says already.
        """
        yield from (f"  {metric}" for metric in self.lost_metrics)
        for number, cause in enumerate(self.causes, start=1):
            yield f"  {number}. {cause.line}"
            yield from (f"     · {fact}" for fact in cause.evidence)
            if cause.next_step:
                yield f"     next: {cause.next_step_once if once else cause.next_step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One sentence and the rows that it explains."""

    subject: str
    """`mnist_cnn/ddp on 1, 2 and 4 GPUs`, or `all rows`."""
    reason: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that any format shows of a comparison."""

    comparison: Comparison
    rows: tuple[Row, ...]
    """In the order of the baseline."""
    notes: tuple[str, ...]
    injections: tuple[str, ...]
    """The faults that were made on purpose in the results."""
    measured_at: datetime
    """When the newest of the results were."""
    hosts: tuple[str, ...]
    wall_s: float
    """How long all runs took."""
    exit_code: int
    """Of the process."""
    screen: Screen

    @property
    def ranked(self) -> list[Row]:
        """The rows that got worse first, then those not shown to be fine, then the passes."""
        return sorted(self.rows, key=lambda row: weight(row.entry.verdict))

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes, with that on faults made on purpose before them."""
        return (*([injection_note(self.injections)] if self.injections else []), *self.notes)

    @property
    def outcome(self) -> str:
        """The exit code in a few words."""
        return OUTCOMES[self.comparison.exit_code]

    @property
    def baseline(self) -> str:
        """Its name and its machine."""
        return f"{self.comparison.baseline_name}: {self.comparison.baseline_machine}"

    @property
    def summary(self) -> str:
        """All verdicts counted, the worst first: `1 regressed, 3 ok`."""
        counts = Counter(row.entry.verdict for row in self.rows)
        words = [f"{counts[v]} {v.value}" for v in sorted(Verdict, key=weight) if counts[v]]
        return ", ".join(words) if words else "nothing to compare"


def view_of(
    comparison: Comparison,
    results: Sequence[Results],
    *,
    exit_code: int | None = None,
    screen: Screen | None = None,
) -> View:
    """The comparison for reading.

    Args:
        comparison: What to show.
        results: What was compared, at least one.
        exit_code: What the process ends with; None where the verdict alone decides that.
        screen: Where it is shown; None is a file or a log.
    """
    wall_s: dict[_Measured, float] = {}
    for result in results:
        for run in result.runs:
            measured = (run.key, run.configuration)
            wall_s[measured] = wall_s.get(measured, 0.0) + (run.wall_s or 0.0)
    newest = max(datetime.fromisoformat(result.created_at) for result in results)
    return View(
        comparison=comparison,
        rows=_rows(comparison.entries, wall_s),
        notes=tuple(dict.fromkeys(map(statement_text, comparison.notes))),
        injections=injections_of(results),
        measured_at=newest,
        hosts=tuple(dict.fromkeys(result.environment.host or "" for result in results)),
        wall_s=sum(wall_s.values()),
        exit_code=int(comparison.exit_code if exit_code is None else exit_code),
        screen=screen or Screen(),
    )


def weight(verdict: Verdict) -> int:
    """0 for what got worse, 1 for what was not shown to be fine, 2 for a pass."""
    return 0 if verdict.is_loss else 2 if verdict.is_pass else 1


def explanations(rows: Sequence[Row]) -> list[Explanation]:
    """Why the rows got their verdicts, each sentence once; rows that are simply ok need none."""
    alike: dict[tuple[object, ...], list[Row]] = {}
    for number, row in enumerate(rows):
        if not row.reason or _is_simply_ok(row.entry):
            continue
        # What has causes or lost metrics of its own is explained by itself.
        alone = number if row.causes or row.lost_metrics else None
        alike.setdefault((row.reason, row.entry.finding, alone), []).append(row)
    return [
        Explanation(
            subject="all rows" if len(group) == len(rows) > 1 else _subject(group),
            reason=group[0].reason,
            rows=tuple(group),
        )
        for group in alike.values()
    ]


def _rows(entries: Sequence[EntryVerdict], wall_s: Mapping[_Measured, float]) -> tuple[Row, ...]:
    names = _names(entries)
    causes = _causes(entries, names)
    return tuple(
        Row(
            entry=entry,
            name=name,
            reason=reason_text(entry),
            short_reason=short_reason(entry),
            lost_metrics=_lost_metrics(entry),
            causes=words,
            wall_s=wall_s.get((entry.key, entry.configuration), 0.0),
        )
        for entry, name, words in zip(entries, names, causes, strict=True)
    )


def _names(entries: Sequence[EntryVerdict]) -> list[str]:
    """Names with options for the cases that have several rows of one number of GPUs."""
    counts = Counter(entry.key for entry in entries)
    several = {(key.case, key.strategy) for key, count in counts.items() if count > 1}
    apart = set_apart(
        [
            entry.configuration
            for entry in entries
            if entry.configuration is not None and (entry.key.case, entry.key.strategy) in several
        ]
    )
    seen: Counter[tuple[str, int]] = Counter()
    names = []
    for entry in entries:
        name = f"{entry.key.case}/{entry.key.strategy}"
        if entry.configuration is not None:
            name = apart.get(entry.configuration, name)
        seen[name, entry.key.gpus] += 1
        count = seen[name, entry.key.gpus]
        names.append(name if count == 1 else f"{name} ({count})")
    return names


def _causes(entries: Sequence[EntryVerdict], names: Sequence[str]) -> list[tuple[CauseView, ...]]:
    """The causes of each entry; a next step is referred to after the first row that says it."""
    said_by: dict[str, str] = {}

    def view(cause: Cause, label: str) -> CauseView:
        step = once = next_step(cause)
        if step in said_by:
            once = "as above" if said_by[step] == label else f"as for {said_by[step]}"
        said_by.setdefault(step, label)
        return CauseView(
            line=whole_line(cause),
            evidence=evidence(cause),
            next_step=step,
            next_step_once=once,
        )

    found: list[tuple[CauseView, ...]] = [()] * len(entries)
    for i in sorted(range(len(entries)), key=lambda i: weight(entries[i].verdict)):
        label = f"{names[i]} on {gpus_text(entries[i].key.gpus)}"
        found[i] = tuple(view(cause, label) for cause in entries[i].causes)
    return found


def _lost_metrics(entry: EntryVerdict) -> tuple[str, ...]:
    known = deciding_metric(entry)
    return tuple(
        metric_text(metric)
        for metric in entry.metrics
        if metric.verdict.is_loss and metric is not known
    )


def _is_simply_ok(entry: EntryVerdict) -> bool:
    """True of a row that needs no words; one whose speedup is unknown says why it is."""
    ok = entry.verdict is Verdict.OK and entry.finding is None
    return ok and entry.changed_quantity is not QuantityName.THROUGHPUT


def _subject(rows: Iterable[Row]) -> str:
    counts: dict[str, list[int]] = {}
    for row in rows:
        counts.setdefault(row.name, []).append(row.entry.key.gpus)
    subjects = [f"{name} on {gpus_text(*gpus)}" for name, gpus in counts.items()]
    left_out = sum(len(gpus) for gpus in list(counts.values())[_NAMED_SUBJECTS:])
    more = f" and {left_out} more row{'' if left_out == 1 else 's'}" if left_out else ""
    return ", ".join(subjects[:_NAMED_SUBJECTS]) + more
