"""Describe the causes of performance losses: headlines, statements and next steps."""

import re
from collections.abc import Callable, Mapping

from gpuscale.base.text import counted, whole_percent
from gpuscale.records import EnvironmentChange, MetricSpec
from gpuscale.records.cause import LINKS, Cause, CauseKind, DeviceSymptom, PortSymptom
from gpuscale.records.environment_diff import environment_text, listed
from gpuscale.reports import phrases
from gpuscale.reports.cause_evidence import (
    device_text,
    duration,
    evidence_of,
    port_text,
    symptom_text,
)


def headline(cause: Cause, *alike: Cause) -> str:
    """Summarise a cause: `exposed all-reduce +14 ms`, or with similar ones `… +12 ms to +14 ms`."""
    return _headline_and_statement(cause, *alike)[0]


def statement(cause: Cause) -> str:
    """Describe a cause in one sentence that names the rank, host or GPU responsible, if known."""
    return _headline_and_statement(cause)[1]


def whole_line(cause: Cause, device: str) -> str:
    """Return a cause's headline, share, statement and scope in one line: `computing +14 ms …`."""
    words, sentence = _headline_and_statement(cause)
    where = scope(cause, device)
    return f"{words}{share_text(cause)}: {sentence}{'; ' if where else ''}{where}"


def share_text(*alike: Cause) -> str:
    """Format a cause's share of the added time, or a range for several causes; empty if unknown."""
    shares = sorted(cause.share for cause in alike if cause.share is not None)
    if not shares:
        return ""
    gained_s = sorted(cause.gained_s for cause in alike)
    is_large = gained_s[-1] >= _LEAST_GAINED * max(cause.lost_s or 0.0 for cause in alike)
    most = f"{'up to ' * (len(alike) > 1)}−{duration(gained_s[-1], 2)}"
    others = f"; other parts {most}" if is_large else ""
    longer, (cause, *more) = "what", alike
    if not more and cause.share and cause.lost_s:
        longer = f"the {duration(cause.lost_s / cause.share, 2)} that"
    share = phrases.format_range([*map(whole_percent, shares)])
    return f" ({share} of {longer} got longer{others})"


def scope(cause: Cause, device: str) -> str:
    """Say which device counts a cause affects: `from 8 GPUs on, not on 4`; empty if unknown."""
    onset = cause.onset
    if onset is None:
        return ""
    lost, spared = onset.lost_on, onset.spared_on
    if not spared:
        return f"on {phrases.devices_text(device, *lost)}"
    where = f"on {phrases.devices_text(device, *lost)}{' only' if len(lost) == 1 else ''}"
    if max(spared) < lost[0]:
        where = f"from {phrases.devices_text(device, lost[0])} on"
    if onset.spared_nodes == 1 < onset.nodes:
        where += f", where the ranks span {onset.nodes} nodes"
    elif onset.spared_nodes is not None and onset.nodes == 1:
        where += ", within one node"
    return f"{where}, not on {phrases.devices_text(device, *spared)}"


def next_step(cause: Cause) -> str:
    """Return what the user should run or check next; empty if the cause has no known remedy."""
    if (remedy := cause.remedy) is None:
        return ""
    hosts = remedy.hosts
    places = " and ".join(hosts) if len(hosts) < 3 else f"each of {len(hosts)} hosts"
    places = places or "each host"
    words = re.sub(r"\[(.*?)\]", "" if remedy.is_idle else r"\1", NEXT_STEPS[remedy.code])
    scripts = listed(remedy.scripts) or "the script"
    if remedy.scripts and "{scripts}" not in words:
        words = f"look at what changed in {{scripts}}; if that is not it, {words}"
    return words.format(hosts=", ".join(hosts), places=places, runs=remedy.runs, scripts=scripts)


def _headline_and_statement(cause: Cause, *alike: Cause) -> tuple[str, str]:
    if cause.code in NOT_ESTABLISHED:
        return cause.kind, NOT_ESTABLISHED[cause.code]
    lost_s = sorted(
        _grown_s(each) if each.lost_s is None else each.lost_s for each in (cause, *alike)
    )
    added = phrases.format_range([f"{'+' * (each >= 0)}{duration(each, 2)}" for each in lost_s])
    took = f"{duration(cause.after_s)} a step {_baseline(cause)}"
    return WORDS[cause.code](cause, added, took)


def _grown_s(cause: Cause) -> float:
    """Return the seconds by which the affected part of a step is longer than in the baseline."""
    return (cause.after_s or 0.0) - (cause.before_s or 0.0)


def _baseline(cause: Cause) -> str:
    """Return the affected part's baseline time and any clear saving by shorter communication."""
    baseline = f"(before: {duration(cause.before_s)})"
    back_s = 0.0 if cause.lost_s is None else _grown_s(cause) - cause.lost_s
    if back_s < _LEAST_BACK * _grown_s(cause):
        return baseline
    return f"{baseline}, {duration(back_s)} of it taken back by shorter exposed communication"


def _link(cause: Cause) -> str:
    if cause.kind is CauseKind.FABRIC:
        first, *more = evidence_of(PortSymptom, cause)
        others = f"; {len(more)} more" if more else ""
        return f" ({first.host} {first.port}: {port_text(first)}{others})"
    return f" ({cause.kind})" if cause.kind in LINKS else ""


def _and_more(cause: Cause) -> str:
    return f" and {len(cause.evidence) - 1} more" if len(cause.evidence) > 1 else ""


def _stragglers(cause: Cause, added: str, _: str) -> tuple[str, str]:
    several = len(cause.ranks) > 1
    if not cause.ranks:
        name, who = "slowest rank", "the slowest rank"
    elif cause.is_whole_host:
        name = f"all ranks of {cause.hosts[0]}"
        who = f"all {len(cause.ranks)} ranks of {cause.hosts[0]}"
    else:
        name = who = phrases.ranks_text(cause.ranks)
        if not several:
            who += f" ({', '.join((*cause.hosts, *cause.device_uuids))})"
    how, slow = "", "slow by its clocks" if cause.kind is CauseKind.CLOCKS else "slow"
    if cause.kind is CauseKind.DATA:
        how, slow = " with its batches", "late with data"
    runs = "; it is another rank from run to run"
    if cause.ranks and cause.seen_in:
        seen, of = cause.seen_in
        runs = f"the slowest in {seen} of {counted(of, 'run')}"
        runs = f"; it is {runs}" if cause.is_own_lag else f"; slow: {who}, {runs}"
    return f"{name} {slow} {added}", (
        f"{who if cause.is_own_lag else 'the slowest rank'} lags {duration(cause.after_s)} a step "
        f"behind the rest{how} {_baseline(cause)}, and the others wait{runs}"
    )


def _computing(cause: Cause, added: str, took: str) -> tuple[str, str]:
    clocks = "clocks: " if cause.kind is CauseKind.CLOCKS else ""
    inside = f", with {cause.includes} inside it," if cause.includes else ""
    where, alone = "", ""
    if cause.phase:
        where, alone = f" ({cause.phase})", f", most of the increase in {cause.phase}"
    return f"{clocks}computing{where} {added}", f"computing{inside} takes {took}{alone}"


def _device_fault(cause: Cause, *_: str) -> tuple[str, str]:
    first = evidence_of(DeviceSymptom, cause)[0]
    return f"{symptom_text(first)} on {device_text(first.uuid, first.host)}{_and_more(cause)}", (
        "it was not there in the baseline; how much time it costs is unknown"
    )


def _clocks_without_phases(cause: Cause, *_: str) -> tuple[str, str]:
    symptoms = evidence_of(DeviceSymptom, cause)
    first, count = symptoms[0], len({symptom.uuid for symptom in symptoms})
    where = device_text(first.uuid, first.host) if count == 1 else f"{count} GPUs"
    return f"clocks: {symptom_text(first)} on {where}", (
        "low enough to explain at least half of the loss; whether the GPUs also waited is unknown"
    )


def _other_metrics(cause: Cause, *_: str) -> tuple[str, str]:
    lost = " and ".join(metric.words for metric in evidence_of(MetricSpec, cause))
    return cause.kind, f"the step times do not explain why {lost} got worse"


WORDS: Mapping[str, Callable[[Cause, str, str], tuple[str, str]]] = {
    "communication": lambda cause, added, took: (
        f"exposed {cause.includes or 'communication'} {added}{_link(cause)}",
        f"gradient synchronisation holds all ranks up for {took}",
    ),
    "late_batches": lambda _, added, took: (f"data {added}", f"batches take {took}"),
    "late_copies": lambda cause, added, took: (
        f"h2d {added}{_link(cause)}",
        f"batches take {took}",
    ),
    "computing": _computing,
    "stragglers": _stragglers,
    "perhaps_stragglers": lambda *of: (
        f"perhaps {_stragglers(*of)[0]}",
        f"{_stragglers(*of)[1]}; chance makes it seem so in up to 1 of 20 comparisons",
    ),
    "time_in_no_part": lambda cause, added, took: (
        f"{cause.kind} {added}",
        f"training takes {took} beyond the slowest rank's own pace and the communication, as if "
        "ranks took turns at being slow within a run",
    ),
    "clocks_without_phases": _clocks_without_phases,
    "device_fault": _device_fault,
    "environment_changed": lambda cause, *_: (
        f"changed: {environment_text(evidence_of(EnvironmentChange, cause)[0])}{_and_more(cause)}",
        "different from the baseline, which alone does not make it the cause",
    ),
    "other_metrics": _other_metrics,
}
"""Functions from (cause, time added, time per step) to (headline, statement), keyed by code."""
NOT_ESTABLISHED: Mapping[str, str] = {
    "no_phases": "one side or both lack phases, paces or exposed communication of these runs",
    "no_phases_of_commands": "gpuscale sees no phases of a command",
    "within_noise": "no part of the step got longer by more than its own noise",
    "published_figures": (
        "reference figures hold no phases, so the differences from them are unknown"
    ),
}
"""Statements for losses whose cause is not established, keyed by the cause's code."""
NEXT_STEPS: Mapping[str, str] = {
    "doctor_on_hosts": (
        "run 'gpuscale doctor' on {places} while a training runs: it reports temperatures, power "
        "limits and links[; and look there for other processes]"
    ),
    "processes_on_hosts": (
        "look on {places} for [other processes, ]cores that ranks share and lower clocks"
    ),
    "script": (
        "look at what changed in {scripts}, the model and the shape of its data: other work on "
        "the host would slow every phase of a step"
    ),
    "command_or_hosts": (
        "look at what changed in the command, its packages or its data; if nothing did, look at "
        "what ranks share, and run 'gpuscale doctor' on {places}[, where other processes may be]"
    ),
    "jobs_on_hosts": "look for other jobs and daemons on {hosts}",
    "gpu_links": "run 'gpuscale doctor' on each host; 'gpuscale show --phases' names the links",
    "ports": (
        "run 'gpuscale doctor --nodes', and check cables, switch ports and adapters of {hosts}"
    ),
    "network": (
        "test the network between the hosts without gpuscale, and look for its other users"
    ),
    "processes_on_host": (
        "look for [other processes on the host and for ]cores that ranks share: on one host, "
        "ranks on CPU talk through its memory"
    ),
    "storage": (
        "measure again without --data-root: if synthetic data are in time, check the storage"
    ),
    "loaders": (
        "[look for other load on the hosts' CPUs, since synthetic data come from no storage, and "
        "]measure with more --data-workers"
    ),
    "cpu_load": (
        "look for other load on the hosts' CPUs: the batches were made beforehand, so neither a "
        "loader nor storage was late"
    ),
    "copies": ("run 'gpuscale doctor' while a training runs: it reports the PCIe link of each GPU"),
    "faults": "run 'gpuscale doctor' there: it names each fault with its remedy",
    "environment_as_it_was": "measure again with the likeliest of them as it was",
    "case_and_libraries": ("look at what changed in the case, the library and the environment"),
    "more_runs": "measure more runs, with --runs {runs}",
    "record_own": (
        "see the efficiency budget of 'gpuscale show', and record a baseline of your own with "
        "'gpuscale baseline record' while all is well"
    ),
}
"""Next steps by code; words in brackets are left out if the hosts are known to be idle."""
_LEAST_BACK, _LEAST_GAINED = 0.01, 0.05
"""Smallest reported part of an increase that shorter communication gave back."""
