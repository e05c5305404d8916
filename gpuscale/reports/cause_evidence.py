"""Describe evidence for causes of a slowdown: phases, slow ranks, devices, ports, probes."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from gpuscale.analysis.estimates import difference
from gpuscale.analysis.step_parts import lag_of, steps_of
from gpuscale.base.grouping import by_key
from gpuscale.base.text import format_bytes, format_percent, format_seconds, whole_percent
from gpuscale.judge.diagnose.step_parts import stragglers_of
from gpuscale.records import EnvironmentChange, Probe, Run
from gpuscale.records.cause import (
    Cause,
    CauseKind,
    ComparedWith,
    DeviceSymptom,
    PhaseChange,
    PortSymptom,
    ProbeChange,
)
from gpuscale.records.environment_diff import environment_text, listed
from gpuscale.records.gpu_and_port_counters import PORT_COUNTERS_BY_NAME
from gpuscale.records.probes import PROBES
from gpuscale.reports import phrases

_Kind = TypeVar("_Kind")
_NAMED_PORTS = 3
NAMED_SKEW, _LAG_ON_CPU = 0.02, 0.1
"""Smallest skew that is reported, and smallest lag of a rank, as a share of a step; CPU ranks
differ by several percent on a healthy host."""
_UNLIKELY_CHANCE = 0.05
"""Largest probability of a lag by chance with which the lagging rank is named."""
_EVIDENCE_IN_HEADLINE = {"clocks_without_phases", "device_fault", "environment_changed"}
"""Codes of causes whose headline contains the evidence if there is only one piece of it."""
_COUNTERS = {
    "sm_clock_mean_mhz": ("SM clock {} MHz", "{} MHz"),
    "memory_clock_mean_mhz": ("memory clock {} MHz", "{} MHz"),
    "power_limit_w": ("power limit {} W", "{} W"),
    "pcie_width": ("PCIe x{}", "x{}"),
    "pcie_generation": ("PCIe generation {}", "generation {}"),
    "nvlink_active_min": ("{} NVLink links active", "{}"),
    "xgmi_active_min": ("{} XGMI links active", "{}"),
}
"""Templates for a value that is too low and for the usual value, keyed by counter."""
_PORT_FACTS = {
    "state": "{} → {}",
    "rate_gbit_s": "rate {:g} → {:g} Gb/s",
    "width": "{:g} → {:g} lanes",
    "pcie_gt_s": "PCIe {:g} → {:g} GT/s",
    "pcie_width": "PCIe x{:g} → x{:g}",
}
_COMPARED_WITH = {
    ComparedWith.BASELINE: ", {} in the baseline",
    ComparedWith.OTHER_GPUS: ", {} on the other GPUs",
    ComparedWith.MOST: " of {}",
}


def evidence(cause: Cause) -> tuple[str, ...]:
    """Return the facts that support a cause; empty if its headline already states the only fact."""
    if cause.code in _EVIDENCE_IN_HEADLINE and len(cause.evidence) == 1:
        return ()
    phases = ", ".join(
        f"{phase.name} {duration(phase.before_s)} → {duration(phase.after_s)}"
        for phase in evidence_of(PhaseChange, cause)
    )
    return (
        *([phases] if phases else []),
        *_device_facts(evidence_of(DeviceSymptom, cause)),
        *_port_facts(evidence_of(PortSymptom, cause)),
        *map(environment_text, evidence_of(EnvironmentChange, cause)),
        *_probe_facts(evidence_of(ProbeChange, cause)),
    )


def evidence_of(kind: type[_Kind], cause: Cause) -> list[_Kind]:
    """Return the pieces of a cause's evidence that are instances of `kind`."""
    return [each for each in cause.evidence if isinstance(each, kind)]


def duration(seconds: float | None, digits: int = 3) -> str:
    """Format a duration, which noise can make negative: `−5.80 ms`; None counts as zero."""
    seconds = seconds or 0.0
    return f"{'−' if seconds < 0 else ''}{format_seconds(abs(seconds), digits)}"


def _probe_facts(changes: Sequence[ProbeChange]) -> Iterator[str]:
    for each in changes:
        probe = each.probe
        if not each.is_slower:
            yield "probes as in the baseline: not confirmed"
            continue
        size = f" of {format_bytes(probe.message_bytes)}" if probe.message_bytes else ""
        compared = "" if each.beside is ComparedWith.BASELINE else ", beside other devices then"
        yield (
            f"probe: {probe.name}{size} {phrases.found_change_text(each.change)} on "
            f"{probe_place(probe)}{compared}: confirms {PROBES[probe.name].confirms}"
        )


def probe_place(probe: Probe) -> str:
    """Return the probed host, device or link: `node1`, `node1 GPU 3` or `node1 → node2`."""
    to = "" if probe.peer is None else f" → {probe.peer}"
    return f"{probe.host}{to}" if probe.device is None or to else f"{probe.host} {probe.device}"


def _device_facts(symptoms: Sequence[DeviceSymptom]) -> Iterator[str]:
    """Yield a text for each group of devices that have the same symptoms."""
    texts = by_key(((each.uuid, each.host), symptom_text(each)) for each in symptoms)
    for text, devices in by_key(("; ".join(own), device) for device, own in texts.items()).items():
        hosts = listed([*dict.fromkeys(host for _, host in devices if host is not None)])
        several = f"{len(devices)} GPUs{hosts and f' on {hosts}'}"
        yield f"{device_text(*devices[0]) if len(devices) == 1 else several}: {text}"


def _port_facts(symptoms: Sequence[PortSymptom]) -> Iterator[str]:
    """Describe up to three ports, and count the rest: `n2 mlx5_1 port 1: rate 400 → 200 Gb/s`."""
    facts = by_key((f"{each.host} {each.port}", port_text(each)) for each in symptoms)
    texts = [f"{place}: {', '.join(found)}" for place, found in facts.items()]
    yield from phrases.few(texts, _NAMED_PORTS, "port")
    if any(symptom.fact in PORT_COUNTERS_BY_NAME for symptom in symptoms):
        yield "counters are the host's: traffic of other jobs may be in them"


def port_text(symptom: PortSymptom) -> str:
    """Describe a port's symptom: `rate 400 → 200 Gb/s`, or `+12 link errors a run, none before`."""
    if symptom.fact in _PORT_FACTS:
        return _PORT_FACTS[symptom.fact].format(symptom.usual or "unknown", symptom.now)
    least = "at least " if symptom.is_floor else ""
    before = f"{symptom.usual:,} before" if symptom.usual else "none before"
    return f"{least}+{symptom.now:,} {PORT_COUNTERS_BY_NAME[symptom.fact].words} a run, {before}"


def symptom_text(symptom: DeviceSymptom) -> str:
    """Describe a device's symptom and the usual value: `PCIe x8, x16 in the baseline`."""
    now, usual = symptom.now, symptom.usual or 0.0
    if symptom.kind in (CauseKind.NVLINK, CauseKind.XGMI) and symptom.usual is None:
        return f"{now:.0f} new {symptom.kind} errors"
    if symptom.counter == "ecc_uncorrected":
        return f"{now:.0f} memory error{'' if now == 1 else 's'} that ECC could not correct"
    if symptom.reason is not None:
        text = f"{symptom.reason} in {whole_percent(now)} of the samples"
        then = f"in {whole_percent(usual)}"
    else:
        this, other = _COUNTERS[symptom.counter]
        text, then = this.format(f"{now:.0f}"), other.format(f"{usual:.0f}")
    heat_c = symptom.temperature_max_c
    heat = "" if heat_c is None else f" (up to {heat_c:.0f} °C)"
    return text + _COMPARED_WITH[symptom.beside].format(then) + heat


def device_text(uuid: str, host: str | None = None) -> str:
    """Return a device's name, `GPU-ab12… on node1`; `GPU-` is added to UUIDs that lack it."""
    name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    return name if host is None else f"{name} on {host}"


def slow_rank(runs: Iterable[Run]) -> str:
    """Say which rank is the slowest and by how much, or that runs are few; empty if by chance."""
    steps = steps_of(runs)
    if len(steps) < 3:
        return "fewer than 3 runs do not tell whether one rank is slow; a comparison may"
    found = stragglers_of(steps, usual_skew_s=0.0)
    behind = [step for step in steps if step.slowest.rank in found.ranks]
    if not behind:
        return ""
    lags, lag = [s.skew_s / s.median.pace_s for s in behind], lag_of(found.ranks, steps)
    p = difference(-lag.mean, [lag.term()]).p_below_zero()
    # Any of the ranks might have been the slowest.
    tests = len(steps[0].ranks) / len(found.ranks)
    usual_lag = statistics.median(lags)
    if usual_lag < NAMED_SKEW or p is None or p * tests > _UNLIKELY_CHANCE:
        return ""
    is_usual = steps[0].run.configuration.device == "cpu" and usual_lag < _LAG_ON_CPU
    who = f"{phrases.ranks_text(found.ranks)} ({', '.join((*found.hosts, *found.device_uuids))})"
    by = phrases.format_range([format_percent(each) for each in sorted({min(lags), max(lags)})])
    other = "the other" if len(steps[0].ranks) == 2 else "the median rank"
    usual = ", as some CPU rank often is" if is_usual else ""
    by += f" behind {other}{usual}; a comparison shows whether that is new"
    return f"{who}: the slowest in {len(behind)} of {len(steps)} runs, {by}"
