"""Both machines of a page: hardware, software, jobs and dates, and where they differ."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from gpuscale.compare.hardware import hardware_label
from gpuscale.environment_diff import FIELDS, listed
from gpuscale.page.content import Cell, Section, Subject, Table, cells, without_unknown
from gpuscale.records import Baseline, Environment, Results
from gpuscale.reports.phrases import UNKNOWN, known_text
from gpuscale.units import format_bytes


class _Side(NamedTuple):
    """What is known of where and when one side was measured."""

    machine: str
    measured_at: Sequence[str]
    jobs: Sequence[str]
    environments: Sequence[Environment]


def _values(of: Callable[[Environment], object]) -> Callable[[_Side], list[str]]:
    return lambda side: [
        str(value) for each in side.environments if (value := of(each)) is not None
    ]


_FACTS: Sequence[tuple[str, Callable[[_Side], Sequence[str]]]] = (
    ("machine", lambda side: [side.machine]),
    ("devices", _values(lambda here: here.hardware_label)),
    ("measured", lambda side: _dates(side.measured_at)),
    ("job", lambda side: side.jobs),
    ("host", _values(lambda here: here.host)),
    *((field.words, _values(field.value)) for field in FIELDS if field.words is not None),
    ("launcher", _values(lambda here: here.launcher)),
    ("variables", lambda side: _variables(side.environments)),
)
_DIFFER_ANYWAY = frozenset({"machine", "measured", "job"})
"""A baseline names its cluster and results do not: what the GPUs are is told beside it."""


def machines(subject: Subject) -> Section:
    """What the results were measured on, beside the baseline's where there is one."""
    sides = [_now(subject.results)]
    headers = ["", "now"]
    if subject.baseline is not None:
        sides.insert(0, _then(subject.baseline))
        headers.insert(1, f"baseline {subject.baseline.name}")
    rows = []
    for name, values in _FACTS:
        known = [listed(list(dict.fromkeys(values(side)))) or UNKNOWN for side in sides]
        if set(known) != {UNKNOWN}:
            # What a side does not know is no difference.
            differ = len({*known} - {UNKNOWN}) > 1 and name not in _DIFFER_ANYWAY
            rows.append(
                (
                    Cell(name, "differs" if differ else ""),
                    *(Cell(text, tone="doubt" if differ else "") for text in known),
                )
            )
    table = Table(
        caption="When, where and with what it was measured",
        headers=headers,
        rows=rows,
        words=frozenset(headers),
    )
    devices = _devices([result.environment for result in subject.results])
    return Section(title="Machines", tables=[table, *devices])


def _now(results: Sequence[Results]) -> _Side:
    environments = [result.environment for result in results]
    return _Side(
        machine=environments[0].hardware_label,
        measured_at=[result.created_at for result in results],
        jobs=[result.allocation_of(run) for result in results for run in result.runs],
        environments=environments,
    )


def _then(baseline: Baseline) -> _Side:
    return _Side(
        machine=hardware_label(baseline.cluster, baseline.hardware),
        measured_at=[baseline.recorded_at] if baseline.recorded_at else [],
        jobs=list(baseline.environments),
        environments=list(baseline.environments.values()),
    )


def _dates(moments: Iterable[str]) -> list[str]:
    return [f"{datetime.fromisoformat(moment):%Y-%m-%d %H:%M %Z}" for moment in moments]


def _variables(environments: Sequence[Environment]) -> list[str]:
    found = (f"{name}={value}" for each in environments for name, value in each.variables.items())
    return [", ".join(sorted({*found}))]


def _devices(environments: Sequence[Environment]) -> list[Table]:
    """Each GPU with what tells it from others, as far as it is known."""
    rows: dict[tuple[Cell, ...], None] = {}
    for here in environments:
        for host, gpu in here.placed_gpus:
            memory = known_text(gpu.memory_bytes, format_bytes)
            limit = known_text(gpu.power_limit_w, "{:.0f} W".format)
            number = gpu.index if gpu.smi_index is None else gpu.smi_index
            place = gpu.pci_address or UNKNOWN
            named = (f"{host or UNKNOWN} GPU {number}", gpu.name, gpu.uuid or UNKNOWN, place)
            rows[cells(*named, memory, limit)] = None
    headers = ("GPU", "model", "UUID", "PCI address", "memory", "power limit")
    words = frozenset(headers[:4])
    if not rows:
        return []
    table = Table(caption="GPUs that were used", headers=headers, rows=list(rows), words=words)
    return [without_unknown(table)]
