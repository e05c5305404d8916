"""The words of a cause: one function for each piece that reports show of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from gpuscale.environment_diff import change_text
from gpuscale.records import METRICS_BY_NAME, EnvironmentChange
from gpuscale.records.cause import (
    Beside,
    Cause,
    CauseCode,
    CauseKind,
    DeviceSymptom,
    EfficiencyLoss,
    LostMetric,
    PhaseChange,
    RemedyCode,
)
from gpuscale.report.phrases import gpus_text, numbers_text
from gpuscale.units import significant, whole_percent

_LINKS = (CauseKind.PCIE, CauseKind.NVLINK)
_Kind = TypeVar("_Kind")


def headline(cause: Cause) -> str:
    """A few words for a table's row: `exposed all-reduce +14 ms`."""
    return _WORDS[cause.code][0].format_map(_Facts(cause))


def statement(cause: Cause) -> str:
    """One sentence that names rank, host and GPU where one of them carries it."""
    return _WORDS[cause.code][1].format_map(_Facts(cause))


def scope(cause: Cause) -> str:
    """`from 8 GPUs on, where the ranks lie on 2 nodes`; empty where nothing tells."""
    onset = cause.onset
    if onset is None:
        return ""
    lost, spared = onset.lost_on, onset.spared_on
    if not spared:
        return f"on {gpus_text(*lost)} alike"
    if max(spared) < lost[0]:
        where = f"from {gpus_text(*lost[:1])} on"
    else:
        where = f"on {gpus_text(*lost)}{' only' if len(lost) == 1 else ''}"
    if onset.spared_nodes == 1 < onset.nodes:
        where += f", where the ranks lie on {onset.nodes} nodes"
    elif onset.spared_nodes is not None and onset.nodes == 1:
        where += ", within one node"
    return f"{where}, not on {gpus_text(*spared)}"


def evidence(cause: Cause) -> tuple[str, ...]:
    """The facts that were seen: phases together, then each device with all that it shows."""
    if cause.code in _SAID_BY_ONE and len(cause.evidence) == 1:
        return ()
    phases = _of_type(PhaseChange, cause)
    symptoms: dict[str, list[str]] = {}
    for each in _of_type(DeviceSymptom, cause):
        symptoms.setdefault(_device(each.uuid, each.host), []).append(_symptom(each))
    return (
        *([", ".join(map(_phase, phases))] if phases else []),
        *(f"{device}: {'; '.join(found)}" for device, found in symptoms.items()),
        *map(change_text, _of_type(EnvironmentChange, cause)),
    )


def next_step(cause: Cause) -> str:
    """The next thing to run or look at; empty where nothing is left to find out."""
    remedy = cause.remedy
    if remedy is None:
        return ""
    hosts = remedy.hosts
    places = " and ".join(hosts) if len(hosts) < 3 else f"each of {len(hosts)} hosts"
    words = _NEXT_STEPS[remedy.code]
    return words.format(hosts=", ".join(hosts), places=places, runs=remedy.runs)


def whole_line(cause: Cause) -> str:
    """`exposed all-reduce +14 ms (83 % of the loss): ranks wait longer; from 4 GPUs on`."""
    share = "" if cause.share is None else f" ({whole_percent(cause.share)} of the loss)"
    where = f"; {scope(cause)}" if scope(cause) else ""
    return f"{headline(cause)}{share}: {statement(cause)}{where}"


def _duration(seconds: float) -> str:
    """Seconds with two significant digits, since noise leaves no more: `14 ms`, `−0.32 ms`."""
    sign, size = ("−" if seconds < 0 else ""), abs(seconds)
    factor, unit = (1.0, "s") if size >= 1 else (1e6, "µs") if 0 < size < 1e-4 else (1e3, "ms")
    return f"{sign}{significant(size * factor, 2)} {unit}"


def _phase(phase: PhaseChange) -> str:
    return f"{phase.name} {_duration(phase.before_s)} → {_duration(phase.after_s)}"


def _added(cause: Cause) -> str:
    """`+14 ms`."""
    lost_s = cause.lost_s or 0.0
    return f"+{_duration(lost_s)}" if lost_s >= 0 else _duration(lost_s)


def _took(cause: Cause) -> str:
    """`35 ms a step on ranks 1 and 2 of 4 (baseline: 21 ms)`."""
    where = ""
    if cause.shared_by is not None:
        ranks, of = cause.shared_by.ranks, cause.shared_by.of
        where = " on all ranks" if len(ranks) == of else f" on {_ranks(ranks)} of {of}"
    return f"{_duration(cause.after_s or 0.0)} a step{where} {_baseline(cause)}"


def _baseline(cause: Cause) -> str:
    return f"(baseline: {_duration(cause.before_s or 0.0)})"


def _seen_in(cause: Cause) -> str:
    assert cause.seen_in is not None, "causes of runs in turn say how many of them"
    return f"{cause.seen_in.count} of {cause.seen_in.of} runs"


def _slow(cause: Cause) -> str:
    return "slow by its clocks" if cause.kind is CauseKind.CLOCKS else "slow"


def _stragglers_short(cause: Cause) -> str:
    if cause.is_whole_host:
        return f"all ranks of {cause.hosts[0]}"
    return _ranks(cause.ranks) if cause.ranks else "slowest rank"


def _stragglers(cause: Cause) -> str:
    several = len(cause.ranks) > 1
    if not cause.ranks:
        who = "the slowest rank"
    elif cause.is_whole_host:
        who = f"all {len(cause.ranks)} ranks of {cause.hosts[0]}"
    elif several:
        who = _ranks(cause.ranks)
    else:
        who = f"rank {cause.ranks[0]} ({', '.join((*cause.hosts, *cause.device_uuids))})"
    batches = f" with {'their' if several else 'its'} batches"
    how = batches if cause.kind is CauseKind.DATA else ""
    lag = (
        f"{who} {'lag' if several else 'lags'} {_duration(cause.after_s or 0.0)} a step behind the "
        f"median rank{how} {_baseline(cause)}, and the others wait"
    )
    if not cause.ranks:
        return f"{lag}; it is another rank from run to run"
    return f"{lag} (in {_seen_in(cause)})"


def _fault(cause: Cause) -> str:
    first = _of_type(DeviceSymptom, cause)[0]
    return f"{_symptom(first)} on {_device(first.uuid, first.host)}"


def _lost(cause: Cause) -> str:
    loss = _of_type(EfficiencyLoss, cause)[0]
    return f"E({loss.gpus}) lacks {loss.lost:.2f} to ideal scaling, {loss.part:.2f} of it"


_FACTS: Mapping[str, Callable[[Cause], str]] = {
    "kind": lambda cause: cause.kind.value,
    "added": _added,
    "took": _took,
    "link": lambda cause: f" ({cause.kind.value})" if cause.kind in _LINKS else "",
    "clocks": lambda cause: "clocks: " if cause.kind is CauseKind.CLOCKS else "",
    "inside": lambda cause: f", with {cause.includes} inside it," if cause.includes else "",
    "slow": _slow,
    "late": lambda cause: "late with data" if cause.kind is CauseKind.DATA else _slow(cause),
    "who": _stragglers_short,
    "lag": _stragglers,
    "seen in": _seen_in,
    "device": lambda cause: _device(cause.device_uuids[0], cause.hosts[0]),
    "fault": _fault,
    "change": lambda cause: change_text(_of_type(EnvironmentChange, cause)[0]),
    "more": lambda cause: f" and {len(cause.evidence) - 1} more" if len(cause.evidence) > 1 else "",
    "budget part": lambda cause: _BUDGET_PARTS[cause.kind],
    "percent": lambda cause: whole_percent(_of_type(EfficiencyLoss, cause)[0].part),
    "lost": _lost,
    "metrics": lambda cause: " and ".join(
        METRICS_BY_NAME[lost.name].words for lost in _of_type(LostMetric, cause)
    ),
}
"""What stands in the words of causes, by name."""


class _Facts:
    """The facts of one cause in words, made when they are asked for."""

    def __init__(self, cause: Cause) -> None:
        self._cause = cause

    def __getitem__(self, name: str) -> str:
        return _FACTS[name](self._cause)


_WORDS: Mapping[CauseCode, tuple[str, str]] = {
    CauseCode.COMMUNICATION: (
        "exposed all-reduce {added}{link}",
        "gradient synchronisation holds all ranks up for {took}",
    ),
    CauseCode.LATE_BATCHES: ("data {added}", "batches take {took}"),
    CauseCode.LATE_COPIES: ("h2d {added}{link}", "batches take {took}"),
    CauseCode.COMPUTING: ("{clocks}computing {added}", "computing{inside} takes {took}"),
    CauseCode.STRAGGLERS: ("{who} {late} {added}", "{lag}"),
    CauseCode.SLOW_DEVICE: (
        "{device} {slow} {added}",
        "it takes {took}, and the other devices do not ({seen in} were on it)",
    ),
    CauseCode.TIME_IN_NO_PART: (
        "{kind} {added}",
        "training takes {took} beyond the slowest rank's own pace and the communication, as where "
        "ranks are slow in turn within a run",
    ),
    CauseCode.DEVICE_FAULT: (
        "{fault}{more}",
        "it was not so in the baseline, and how much time it costs is not known",
    ),
    CauseCode.ENVIRONMENT_CHANGED: (
        "changed: {change}{more}",
        "different from the baseline, which alone makes it no cause",
    ),
    CauseCode.LOST_TO_IDEAL: (
        "{budget part} {percent} of the step",
        "{lost} here; how much of that the published figures had too is not known",
    ),
    CauseCode.OTHER_METRICS: ("{kind}", "{metrics} got worse and the step did not get longer"),
    CauseCode.NO_PHASES_BEFORE: ("{kind}", "the baseline keeps no phases and paces of these runs"),
    CauseCode.NO_PHASES_AFTER: ("{kind}", "the results hold no phases and paces of these runs"),
    CauseCode.WITHIN_NOISE: ("{kind}", "no part of the step got longer by more than its own noise"),
    CauseCode.PUBLISHED_FIGURES: (
        "{kind}",
        "published figures hold no phases, so what is different from them cannot be told",
    ),
}
"""The headline and the statement of each cause."""
_NEXT_STEPS: Mapping[RemedyCode, str] = {
    RemedyCode.DOCTOR_ON_HOSTS: (
        "run 'gpuscale doctor' on {places} while a training runs: it tells heat, power limits "
        "and links; and look there for other processes"
    ),
    RemedyCode.PROCESSES_ON_HOSTS: (
        "look for other processes on {places}, and for cores that ranks share"
    ),
    RemedyCode.JOBS_ON_HOSTS: "look for other jobs and daemons on {hosts}",
    RemedyCode.JOBS_IN_TURN: (
        "look for other jobs and daemons that take turns on the hosts, and measure more runs"
    ),
    RemedyCode.GPU_LINKS: (
        "run 'gpuscale doctor' on each host, and measure again with NCCL_DEBUG=INFO, which "
        "logs how NCCL connects the GPUs"
    ),
    RemedyCode.NETWORK: (
        "test the network between the hosts without gpuscale, and look for its other users"
    ),
    RemedyCode.PROCESSES_ON_HOST: (
        "look for other processes on the host: on one host, ranks on CPU talk through its memory"
    ),
    RemedyCode.STORAGE: (
        "measure again without --data-root: where synthetic data are in time, look at storage"
    ),
    RemedyCode.CPU_LOAD: (
        "look for other load on the hosts' CPUs, since synthetic data come from no storage, and "
        "measure with more --data-workers"
    ),
    RemedyCode.COPIES: (
        "run 'gpuscale doctor' while a training runs: it tells the PCIe link of each GPU"
    ),
    RemedyCode.FAULTS: "run 'gpuscale doctor' there: it names each fault with its remedy",
    RemedyCode.ENVIRONMENT_AS_IT_WAS: "measure again with the likeliest of them as it was",
    RemedyCode.CASE_AND_LIBRARIES: (
        "look at what changed in the case, the library and the environment"
    ),
    RemedyCode.RECORD_AGAIN: "record the baseline again: 'gpuscale baseline record' keeps them",
    RemedyCode.MEASURE_AGAIN: "measure again with this gpuscale",
    RemedyCode.MORE_RUNS: "measure more runs, with --runs {runs}",
    RemedyCode.RECORD_OWN: (
        "record a baseline of your own with 'gpuscale baseline record' while all is well"
    ),
}
_SAID_BY_ONE = {CauseCode.DEVICE_FAULT, CauseCode.ENVIRONMENT_CHANGED}
"""Causes whose headline says what there is to see, if it is a single thing."""
_BUDGET_PARTS: Mapping[CauseKind, str] = {
    CauseKind.COMMUNICATION: "exposed all-reduce",
    CauseKind.DATA: "data",
    CauseKind.SLOW_RANK: "slowest rank",
}
_COUNTERS = {
    "sm_clock_mean_mhz": ("SM clock {:.0f} MHz", "{:.0f} MHz"),
    "memory_clock_mean_mhz": ("memory clock {:.0f} MHz", "{:.0f} MHz"),
    "power_limit_w": ("power limit {:.0f} W", "{:.0f} W"),
    "pcie_width": ("PCIe x{:.0f}", "x{:.0f}"),
    "pcie_generation": ("PCIe generation {:.0f}", "generation {:.0f}"),
    "nvlink_active_min": ("{:.0f} NVLink links active", "{:.0f}"),
}
"""A counter that is too low, and what it is beside."""
_BESIDE = {
    Beside.BASELINE: ", {} in the baseline",
    Beside.OTHER_GPUS: ", {} on the other GPUs",
    Beside.MOST: " of {}",
}
_XIDS = {
    48: "double-bit ECC error",
    63: "row of memory remapped or retired",
    64: "row of memory could not be remapped or retired",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
}
"""The hardware's own faults, in NVIDIA's words; most other numbers a program can cause."""


def _symptom(symptom: DeviceSymptom) -> str:
    """`PCIe x8, x16 in the baseline`."""
    now, usual = symptom.now, symptom.usual
    if symptom.counter == "xids":
        return f"XID {now:.0f}" + (f" ({_XIDS[int(now)]})" if now in _XIDS else "")
    if symptom.counter == "nvlink_errors":
        return f"{now:.0f} new NVLink errors"
    if symptom.counter == "ecc_uncorrected":
        return f"{now:.0f} memory error{'' if now == 1 else 's'} that ECC could not correct"
    if symptom.reason is not None:
        text = f"{symptom.reason} in {whole_percent(now)} of the samples"
        then = f"in {whole_percent(usual or 0.0)}"
    else:
        this, other = _COUNTERS[symptom.counter]
        text, then = this.format(now), other.format(usual)
    heat_c = symptom.temperature_max_c
    heat = "" if heat_c is None else f" (up to {heat_c:.0f} °C)"
    return text + _BESIDE[symptom.beside].format(then) + heat


def _device(uuid: str, host: str | None) -> str:
    """`GPU-ab12… on node1`; the UUID gets the prefix that nvidia-smi prints."""
    name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    return name if host is None else f"{name} on {host}"


def _of_type(kind: type[_Kind], cause: Cause) -> list[_Kind]:
    return [each for each in cause.evidence if isinstance(each, kind)]


def _ranks(ranks: Sequence[int]) -> str:
    """`rank 2`, or `ranks 1, 2 and 4`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {numbers_text(ranks)}"
