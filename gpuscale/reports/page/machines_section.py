"""Both machines of a page: hardware, software, jobs and dates, and where they differ."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from gpuscale.base.units import format_bytes
from gpuscale.judge.compare.hardware import hardware_label
from gpuscale.records import Environment
from gpuscale.records.environment_diff import ENVIRONMENT_FIELDS, listed
from gpuscale.reports.columns import Cell, Tone
from gpuscale.reports.page.content import Section, Subject, Table, without_unknown
from gpuscale.reports.phrases import UNKNOWN, known_text

_DIFFER_ANYWAY = frozenset({"machine", "measured", "job"})
"""A baseline names its cluster and results do not: what the GPUs are is told beside it."""


def machines(subject: Subject) -> Section:
    """What the results were measured on, beside the baseline's where there is one."""
    here = [result.environment for result in subject.results]
    begun = [result.created_at for result in subject.results]
    jobs = [result.allocation_of(run) for result in subject.results for run in result.runs]
    sides = {"now": _facts(here[0].hardware_label, begun, jobs, here)}
    if (before := subject.baseline) is not None:
        machine = hardware_label(before.cluster, before.hardware)
        begun = [before.recorded_at] if before.recorded_at else []
        jobs, there = [*before.environments], [*before.environments.values()]
        sides = {f"baseline {before.name}": _facts(machine, begun, jobs, there), **sides}
    rows = []
    for name in sides["now"]:
        known = [side[name] or UNKNOWN for side in sides.values()]
        if set(known) != {UNKNOWN}:
            # What a side does not know is no difference.
            differ = len({*known} - {UNKNOWN}) > 1 and name not in _DIFFER_ANYWAY
            row = {"": Cell(name, "differs" if differ else "")}
            tone: Tone = "doubt" if differ else ""
            for side, text in zip(sides, known, strict=True):
                row[side] = Cell(text, tone=tone)
            rows.append(row)
    table = Table(
        caption="When, where and with what it was measured",
        rows=rows,
        words=frozenset(("", *sides)),
    )
    return Section(title="Machines", tables=[table, *_devices(here)])


def _facts(
    machine: str,
    begun: Sequence[str],
    jobs: Sequence[str],
    environments: Sequence[Environment],
) -> dict[str, str]:
    """What is known of where and when one side was measured; empty is what is not."""
    variables = {f"{name}={its}" for each in environments for name, its in each.variables.items()}
    values: dict[str, Iterable[object]] = {
        "machine": [machine],
        "devices": [its.hardware_label for its in environments],
        "measured": [f"{datetime.fromisoformat(each):%Y-%m-%d %H:%M %Z}" for each in begun],
        "job": jobs,
        "host": [its.host for its in environments],
        **{f.words: map(f.value, environments) for f in ENVIRONMENT_FIELDS if f.words is not None},
        "launcher": [its.launcher for its in environments],
        "variables": [", ".join(sorted(variables))],
    }
    return {
        name: listed([*dict.fromkeys(str(each) for each in its if each is not None)])
        for name, its in values.items()
    }


def _devices(environments: Sequence[Environment]) -> list[Table]:
    """Each GPU with what tells it from others, as far as it is known."""
    rows: list[dict[str, Cell]] = []
    for host, gpu in (each for here in environments for each in here.placed_gpus):
        number = gpu.index if gpu.smi_index is None else gpu.smi_index
        texts = {
            "GPU": f"{host or UNKNOWN} GPU {number}",
            "model": gpu.name,
            "UUID": gpu.uuid or UNKNOWN,
            "PCI address": gpu.pci_address or UNKNOWN,
            "memory": known_text(gpu.memory_bytes, format_bytes),
            "power limit": known_text(gpu.power_limit_w, "{:.0f} W".format),
        }
        row = {header: Cell(text) for header, text in texts.items()}
        rows += [row] if row not in rows else []
    if not rows:
        return []
    words = frozenset(("GPU", "model", "UUID", "PCI address"))
    return [Table(caption="GPUs that were used", rows=without_unknown(rows), words=words)]
