"""The findings of `gpuscale doctor` and `gpuscale probe` as text."""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from gpuscale.base.grouping import by_key
from gpuscale.base.text import format_bytes, format_percent, significant, whole_percent
from gpuscale.judge.diagnose.slow_links import NodeFinding
from gpuscale.measure.telemetry.doctor import ExaminedGpu, Machine
from gpuscale.records import NodeEvidence, NodeProbe
from gpuscale.records.gpu_and_port_counters import BYTES, FIELDS, SHARE, Field
from gpuscale.records.probes import PROBES, Port
from gpuscale.reports.cause_evidence import probe_place
from gpuscale.reports.phrases import UNKNOWN, counted, load_text
from gpuscale.reports.screen import table


def doctor_text(machine: Machine, problems: Sequence[str]) -> str:
    """Describe the machine, its GPUs and the problems found, without a final line break."""
    cores = counted(machine.cpu_count, "core")
    load = machine.node.load
    busy = ": busy, so measurements would be noisy" if load and load.is_busy else ""
    lines = [
        f"host      {machine.node.host}",
        f"CPU       {machine.cpu_model or 'unknown model'}, {cores} to use",
        f"load      {load_text(load) if load else UNKNOWN}{busy}",
        "settings",
        *_setting_lines(machine.node),
        *map(_port_line, machine.node.ports),
        f"driver    {machine.driver_absent or machine.driver_version or 'of unknown version'}",
    ]
    if machine.driver_absent is None and not machine.gpus:
        lines.append("GPUs      none")
    for gpu in machine.gpus:
        lines += ["", *_gpu_lines(gpu)]
    none = "no GPU to look at: gpuscale measures CPU ranks here, and says so"
    found = _problems(problems, "no problem found" if machine.gpus else none)
    return "\n".join([*lines, "", *found])


def _port_line(port: Port) -> str:
    rate = "" if port.rate_gbit_s is None else f", {port.rate_gbit_s:g} Gb/s"
    return f"port      {port.name} ({port.kind}): {port.state or UNKNOWN}{rate}"


def probes_text(nodes: Sequence[NodeProbe], findings: Sequence[NodeFinding]) -> str:
    """Return a table of probes, and a line for each finding, without a final line break."""
    measured = (probe for node in nodes for probe in node.probes)
    rows = []
    for probes in by_key((probe.comparison_key, probe) for probe in measured).values():
        rates = {probe_place(probe): statistics.median(probe.rates) for probe in probes}
        slowest, usual = min(rates, key=rates.__getitem__), statistics.median(rates.values())
        first = probes[0]
        size = None if first.message_bytes is None else format_bytes(first.message_bytes)
        name = ", ".join(filter(None, [first.name, first.precision, size]))
        worst = min(rate for probe in probes for rate in probe.rates)
        lag = "" if len(rates) == 1 else f"{slowest} {format_percent(rates[slowest] / usual - 1)}"
        texts = [_rate_text(rate, PROBES[first.name].unit) for rate in (usual, worst)]
        rows.append([name, str(len(rates)), *texts, lag])
    headers = ["probe", "of", "median", "worst repetition", "slowest"]
    none = "a single node: nothing to compare it with"
    if len(nodes) > 1:
        none = "no node or link is slower than the others"
    hosts = ", ".join(node.host for node in nodes)
    problems = _problems([finding.text for finding in findings], none)
    return "\n".join([f"nodes  {hosts}", "", table(headers, rows, left=headers), "", *problems])


def _rate_text(rate: float, unit: str) -> str:
    if unit == "B/s":
        return f"{format_bytes(rate)}/s"
    power = min(4, max(0, math.floor(math.log10(rate) / 3)))
    return f"{significant(rate / 1000**power)} {('', 'k', 'M', 'G', 'T')[power]}{unit}"


def _problems(problems: Sequence[str], none: str) -> list[str]:
    if not problems:
        return [none]
    return [counted(len(problems), "problem"), *(f"  {problem}" for problem in problems)]


def _setting_lines(node: NodeEvidence) -> list[str]:
    absent = {name: f"absent: {reason}" for name, reason in node.absent.items()}
    values = {name.replace("_", " "): text for name, text in {**node.settings, **absent}.items()}
    return [f"  {name:<{max(map(len, values))}}  {text}" for name, text in values.items()]


def _gpu_lines(gpu: ExaminedGpu) -> Iterator[str]:
    yield f"GPU {gpu.number}  {gpu.name or 'of unknown name'}  {gpu.uuid or ''}".rstrip()
    if gpu.unreachable is not None:
        yield f"  cannot be reached: {gpu.unreachable}"
        return
    if gpu.firmware:
        yield f"  {'firmware':<13} {gpu.firmware}"
    absent = gpu.reading.absent
    for label, fields in by_key((field.label, field) for field in FIELDS).items():
        answers = [(field, gpu.reading.answers.get(field.moment)) for field in fields]
        shown = [_text(field, answer) for field, answer in answers if answer is not None]
        lacking = [absent[field.moment] for field in fields if field.moment in absent]
        if shown or lacking:
            yield f"  {label:<13} {', '.join(shown) if shown else f'absent: {lacking[0]}'}"


def _text(field: Field, answer: Any) -> str:
    if field.moment == "clock_event_reasons":
        return ", ".join(answer) or "none"
    if field.take is sum:
        down = [str(link) for link, is_active in enumerate(answer) if not is_active]
        inactive = f" (inactive: {', '.join(down)})" if down else ""
        return f"{sum(answer)} of {len(answer)} links active{inactive}"
    forms = {BYTES: format_bytes, SHARE: whole_percent}
    plain = f"{answer:.0f} {field.quantity.unit}".rstrip()
    return field.shown.format(forms[field.quantity](answer) if field.quantity in forms else plain)
