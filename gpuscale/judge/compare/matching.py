"""Match the rows and machines of baseline and results; find rows that cannot be judged."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Unpack

import msgspec
from msgspec.structs import replace

from gpuscale.analysis.scaling import Entry
from gpuscale.base.strategies import STRATEGIES
from gpuscale.judge.sides import Sides
from gpuscale.records import (
    EntryKey,
    EntryVerdict,
    Environment,
    Facts,
    FieldChange,
    Hardware,
    PointKey,
    PublishedFigure,
    Scaling,
    ScalingPoint,
    Statement,
    Verdict,
    differences,
)

PUBLISHED_SIZE = "full"
_LONGEST_MESSAGE = 160
_SPELLINGS = (
    (r"^\s*\d+\s*[X×]\s+", ""),
    # Power limit, clock and PCIe generation (`300W`, `1410 MHz`, `Gen4`) do not identify a model.
    (r"\b\d+\s*(?:W|WATTS?|[MG]HZ)\b|\bGEN\s*\d\b", ""),
    (r"\bMIG\s+(\d+)G\.(\d+)GB\b", r"MIG\1X\2"),
    (r"\b(\d+)\s*(?:GB|GIB|G)\b", r"\1GB"),
    (r"\bPCI-?E\d*\b", "PCIE"),
    (r"\b(SXM|HBM)\d*\b", r"\1"),
)
"""Regular expressions that unify the spelling of GPU names, each with its replacement."""
_FORMS = frozenset({"SXM", "PCIE", "NVL"})
_VARIANT = re.compile(rf"\d+GB|HBM|{'|'.join(sorted(_FORMS))}")
# Words that distinguish models of the same number: an RTX 3090 is not an RTX 3090 Ti.
_QUALIFIERS = frozenset({"TI", "SUPER", "ADA", "PRO", "MAX", "LAPTOP"})
_VENDOR = frozenset(
    {"NVIDIA", "TESLA", "GEFORCE", "QUADRO", "AMD", "INSTINCT", "RADEON", "GPU", "GPUS", "CORE"}
    | {"TENSOR", "GENERATION", "GRAPHICS"}
)


def first_failure(entry: Entry) -> str | None:
    """Return the message of an entry's first failed run, in one line; None if no run failed."""
    if not entry.failed:
        return None
    if (failure := entry.failed[0].failure) is None:
        return "the run has no windows"
    line = (failure.message.strip() or failure.kind).splitlines()[0]
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[: _LONGEST_MESSAGE - 1]}…"


class MatchedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row's entries in baseline and results, matched but not yet judged."""

    key: EntryKey
    before: Entry | None = None
    published: ScalingPoint | None = None
    """Published scaling point to judge against; set only if `before` is None."""
    after: Entry | None = None
    obstacle: tuple[Verdict, Statement] | None = None
    """Verdict on a row that cannot be judged, and its reason; None if the row can be judged."""

    @property
    def points(self) -> tuple[PointKey, PointKey]:
        """Keys of the baseline entry and of the current entry; the row must have both."""
        assert self.before is not None, "the baseline measured the row"
        assert self.after is not None, "the results measured the row"
        return self.before.key, self.after.key

    @property
    def figure(self) -> PublishedFigure | None:
        """The published figure that the row is judged against; None if there is none."""
        return None if self.published is None else self.published.figure

    def verdict_of(
        self, verdict: Verdict, reason: Statement, baseline: Scaling | None = None
    ) -> EntryVerdict:
        """Build the row's `EntryVerdict`; by default, the baseline's values are of all its runs."""
        shown = self.after or self.before
        if baseline is None:
            baseline = Scaling() if self.before is None else self.before.point
        if self.published is not None:
            baseline = replace(self.published, step_time_s=None)
        return EntryVerdict(
            key=self.key,
            verdict=verdict,
            baseline=baseline,
            current=Scaling() if self.after is None else self.after.point,
            reason=reason,
            configuration=None if shown is None else shown.key.configuration,
        )

    def blocked(self, obstacle: Verdict, code: str, **facts: Unpack[Facts]) -> "MatchedRow":
        """Return an unjudged copy with the verdict `obstacle` and the reason (`code`, `facts`)."""
        return replace(self, obstacle=(obstacle, Statement.of(code, **facts)))


def match(sides: Sides, keys: Sequence[EntryKey]) -> list[MatchedRow]:
    """Match baseline and current entries of each key; return the rows in the order of `keys`."""
    rows: list[MatchedRow] = []
    for key in keys:
        then, now = sides.before.by_row.get(key), sides.after.by_row.get(key, ())
        published = _published(key, sides.published)
        if then:
            rows += _measured_rows(then, now)
        elif published is not None:
            # Publications without such details are assumed to use fp32 and no compiler.
            plainest = sorted(now, key=_options)
            found = [(_published_differences(published, entry.point), entry) for entry in plainest]
            rows.append(_with_nearest(MatchedRow(key=key, published=published), found))
        elif now:
            rows += [_new_row(entry, ()) for entry in now]
        else:
            rows.append(MatchedRow(key=key).blocked(Verdict.MISSING, "on_neither_side"))
    return rows


def _published(key: EntryKey, published: Mapping[EntryKey, ScalingPoint]) -> ScalingPoint | None:
    """Return the point of `key`, else of what its strategy wraps; None if neither is published."""
    demands = STRATEGIES.get(key.strategy)
    if key in published or demands is None or demands.wraps is None:
        return published.get(key)
    return published.get(key._replace(strategy=demands.wraps))


def _measured_rows(before: Sequence[Entry], after: Sequence[Entry]) -> Iterator[MatchedRow]:
    """Yield each baseline entry with the current entry most like it, then leftover current ones."""
    taken = {entry.key.configuration for entry in before}
    free = [entry for entry in after if entry.key.configuration not in taken]
    shown = []
    for entry in before:
        same = [now for now in after if now.key.configuration == entry.key.configuration]
        found = [(_entry_differences(entry, now), now) for now in same or free]
        row = _with_nearest(MatchedRow(key=entry.key.row, before=entry), found)
        shown.append(row.after)
        yield row
    for now in after:
        if now not in shown:
            yield _new_row(now, before)


def _options(entry: Entry) -> int:
    used = entry.key.configuration
    options = used.precision != "fp32", used.channels_last, used.compiled, used.data != "real"
    return sum(map(bool, options))


def _new_row(after: Entry, before: Sequence[Entry]) -> MatchedRow:
    row = MatchedRow(key=after.key.row, after=after)
    if nearest := min((_entry_differences(each, after) for each in before), key=len, default=()):
        return row.blocked(Verdict.MISSING, "no_entry_alike", differences=nearest)
    return row.blocked(Verdict.MISSING, "no_entry")


def _with_nearest(
    row: MatchedRow, found: Sequence[tuple[Sequence[FieldChange], Entry]]
) -> MatchedRow:
    """Add the entry in `found` with the fewest differences; block a row that cannot be judged."""
    if not found:
        return row.blocked(Verdict.MISSING, "not_measured")
    different, after = min(found, key=lambda pair: len(pair[0]))
    row = replace(row, after=after)
    if different:
        return row.blocked(Verdict.INCOMPARABLE, "other_measurement", differences=different)
    if ranks := after.key.configuration.ranks_per_gpu:
        return row.blocked(Verdict.INCOMPARABLE, "shared_gpu", ranks=ranks)
    if after.logs:
        return row
    made, failure = len(after.failed), first_failure(after)
    return row.blocked(Verdict.MISSING, "all_runs_failed", all_made=made, failure=failure)


def _entry_differences(before: Entry, after: Entry) -> tuple[FieldChange, ...]:
    old, new = before.key, after.key
    found = differences(old.configuration, new.configuration)
    found += _differing("batch_per_gpu", old.batch_per_gpu, new.batch_per_gpu)
    if old.sample_shape is not None and new.sample_shape is not None:
        found += _differing("sample_shape", old.sample_shape, new.sample_shape)
    # No difference if a placement is unknown, or if the baseline has runs of each placement.
    then, now = _placements(before), _placements(after)
    if then and not now <= then:
        found += _differing("ranks_per_node", then, now)
    return found


def _placements(entry: Entry) -> frozenset[tuple[int, ...]]:
    """Return the distinct placements of the valid runs: ranks per node, in descending order."""
    return frozenset(
        tuple(sorted(Counter(rank.host for rank in run.ranks).values(), reverse=True))
        for run in entry.valid
        if run.ranks
    )


def _published_differences(
    published: ScalingPoint, measured: ScalingPoint
) -> tuple[FieldChange, ...]:
    of, used = published.configuration, measured.configuration
    if used.metric is not None:
        return _differing("metric", of.metric, used.metric)
    # Weak and strong scaling differ in the batch per GPU.
    return (
        *_differing("device", of.device, used.device),
        *_differing("size", PUBLISHED_SIZE, used.size),
        *_differing("batch_per_gpu", published.batch_per_gpu, measured.batch_per_gpu),
        *_differing("metric", of.metric, used.metric),
    )


def _differing(name: str, before: object, after: object) -> tuple[FieldChange, ...]:
    return () if before == after else (FieldChange(name, before, after),)


def same_gpu_model(one: str, other: str) -> bool:
    """True if two names can mean the same GPU: `A100` and `NVIDIA A100-SXM4-40GB` can.

    Both must name the same model (`V100`, `RTX 3090 TI`, a MIG slice), and one must have every
    detail (form factor, memory) that the other has: `H100` matches both `H100 PCIe` and `H100 80GB
    HBM3`, which do not match each other.
    """
    model, variant = _parsed(one)
    other_model, other_variant = _parsed(other)
    return model == other_model and (variant <= other_variant or other_variant <= variant)


def _parsed(name: str) -> tuple[frozenset[str], frozenset[str]]:
    text = name.upper()
    for spelling, plain in _SPELLINGS:
        text = re.sub(spelling, plain, text)
    words = frozenset(re.findall(r"[A-Z0-9]+", text)) - _VENDOR
    variant = frozenset(word for word in words if _VARIANT.fullmatch(word))
    numbered = frozenset(w for w in words - variant if w in _QUALIFIERS or re.search(r"\d", w))
    model = numbered or words - variant
    if "HBM" in variant:
        # Drivers name an `H100 SXM5` by its memory: `H100 80GB HBM3`.
        variant = variant - {"HBM"} | (variant & _FORMS or {"SXM"})
    return model, variant


def machine_mismatch(baseline: Hardware, environments: Sequence[Environment]) -> Statement | None:
    """Return the reason why results cannot be compared with the baseline; None if they can.

    An unknown CPU or GPU model does not count as different.
    """
    for environment in environments:
        if other := _other_machine(baseline, environment):
            return Statement.of("other_machine", now=other[0], before=other[1])
    names = [name for environment in environments for name in environment.gpu_names]
    for name in names[1:]:
        if not same_gpu_model(names[0], name):
            return Statement.of("mixed_machines", one=names[0], other=name)
    return None


def _other_machine(baseline: Hardware, environment: Environment) -> tuple[str, str] | None:
    """Return the names (current, baseline) of the first differing hardware; None if all match."""
    if environment.system != baseline.system:
        return environment.system or environment.hardware_label, baseline.system or baseline.device
    if environment.device != baseline.device:
        return environment.device, baseline.device
    if baseline.device == "cpu":
        now, then = environment.cpu_model, baseline.cpu_model
        if now and then and now.casefold().split() != then.casefold().split():
            return now, then
    elif baseline.gpu_name is not None:
        for name in environment.gpu_names:
            if not same_gpu_model(baseline.gpu_name, name):
                return name, baseline.gpu_name
    return None
