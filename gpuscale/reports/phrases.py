"""Wording shared by all reports: configurations, counts, changes, intervals."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from gpuscale.base.grouping import by_key
from gpuscale.base.host import device_word, is_gpu
from gpuscale.base.text import counted as counted
from gpuscale.base.text import (
    format_bytes,
    format_distinct,
    format_percent,
    format_seconds,
    significant,
)
from gpuscale.records import Configuration, Environment, Estimate, HostLoad, Run, Verdict
from gpuscale.records.run import busy_hosts

UNKNOWN = "–"
UNCERTAIN = "uncertain by more than a factor of two"
OPEN = "?"
SEVERAL_UNITS = "metrics in several units, each a row of its own"
FOUND = "found 19 times in 20"
_WIDEST_SYMMETRIC = 0.2
_MOST_ITEMS = 8
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:\d\d)(?:\.\d+)?(?:\+00:00|Z)")


def set_apart(configurations: Sequence[Configuration]) -> dict[Configuration, str]:
    """Return a unique name per configuration: its label, plus distinguishing options if needed."""
    # A command is divided before each option: `torchrun`, `--nproc-per-node {gpus} train.py`.
    parts = {each: re.split(r" (?=-)", each.command or "") for each in configurations}
    words = {each: (*_words(each), *filter(None, parts[each])) for each in configurations}
    shared: dict[str, set[str]] = {}
    for each, options in words.items():
        shared[each.label] = shared.get(each.label, set(options)) & set(options)
    own = {each: [word for word in words[each] if word not in shared[each.label]] for each in words}
    return {
        each: f"{each.label} ({', '.join(options)})" if options else each.label
        for each, options in own.items()
    }


def _words(configuration: Configuration) -> tuple[str, ...]:
    data = configuration.data
    words = (
        "CPU ranks" if configuration.device == "cpu" else None,
        configuration.size,
        f"batch {configuration.batch}" if configuration.batch else None,
        configuration.precision,
        "channels-last" if configuration.channels_last else None,
        "compiled" if configuration.compiled else None,
        f"{configuration.accumulate} batches a step" if configuration.accumulate else None,
        configuration.strategy_options,
        f"micro-batches {configuration.micro_batches}" if configuration.micro_batches else None,
        "synthetic data through a loader" if data == "loader" else data and f"{data} data",
        f"{configuration.ranks_per_gpu} ranks on a GPU" if configuration.ranks_per_gpu else None,
        f"{configuration.scaling} scaling" if configuration.scaling else None,
    )
    return tuple(filter(None, words))


def configurations_text(configurations: Iterable[Configuration]) -> str:
    """Return the options of several configurations: `full, fp32, synthetic data; full, tf32, …`.

    Batch sizes that differ are omitted because the rows of the table show them.
    """
    distinct = dict.fromkeys(configurations)
    if len({each.batch for each in distinct}) > 1:
        distinct = dict.fromkeys(replace(each, batch=None) for each in distinct)
    return "; ".join(dict.fromkeys(", ".join(_words(each)) for each in distinct))


def to_minutes(text: str) -> str:
    """Shorten the UTC timestamps in a text to minutes: `2026-11-21 23:07`.

    Different timestamps within the same minute keep their seconds.
    """
    minutes = {found[0]: f"{found[1]} {found[2]}" for found in _MOMENT.finditer(text)}
    counts = Counter(minutes.values())

    def written(found: re.Match[str]) -> str:
        minute = minutes[found[0]]
        return minute if counts[minute] == 1 else f"{minute}{found[3]}"

    return _MOMENT.sub(written, text)


def load_text(load: HostLoad) -> str:
    """Describe other processes' use of cores and GPUs: `1.9 of 2 cores used by others`."""
    used = UNKNOWN if load.other_cores is None else f"{load.other_cores:.1f}"
    texts = [f"{used} of {counted(load.cores, 'core')} used by others"]
    if load.gpu_processes:
        of_others = "process" if load.gpu_processes == 1 else "processes"
        texts.append(f"{load.gpu_processes} {of_others} of others on the GPUs")
    return ", ".join(texts)


def runs_text(runs: Sequence[Run]) -> str:
    """Count the runs and their sessions: `12 runs in 4 sessions`."""
    sessions = counted(len({run.allocation for run in runs}), "session")
    return f"{counted(len(runs), 'run')} in {sessions}"


def busy_text(runs: Sequence[Run]) -> str:
    """Say how many runs had a busy host, and the highest load; empty if no host was busy."""
    if not (busy := busy_hosts(runs)):
        return ""
    some = "" if len(busy) == len(runs) else f" in {len(busy)} of {counted(len(runs), 'run')}"
    return f"measured on a busy host{some} ({load_text(busy[0][1])})"


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks as text: `rank 2`, or `ranks 1, 2 and 4`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {enumerated(ranks)}"


def enumerated(items: Sequence[object], most: int = _MOST_ITEMS) -> str:
    """Join items as `1, 2 and 4`; after `most` items, count the rest: `1, 2 and 6 more`."""
    *others, last = map(str, items)
    if len(others) >= most:
        *others, last = *others[:most], f"{len(items) - most} more"
    return f"{', '.join(others)} and {last}" if others else last


def few(texts: Sequence[str], most: int, word: str) -> list[str]:
    """Return the first `most` texts and, if there are more, `and 3 more rows` (`word`: `row`)."""
    more = len(texts) - most
    return [*texts[:most], *([f"and {counted(more, f'more {word}')}"] if more > 0 else [])]


def format_range(texts: Sequence[str]) -> str:
    """Join the first and the last text, `2.3 % to 6.3 %`; if both are equal, return only one."""
    return " to ".join(dict.fromkeys((texts[0], texts[-1])))


def devices_text(device: str, *counts: int) -> str:
    """Format numbers of devices: `1 GPU`, `4 CPU ranks` or `1, 2 and 4 GPUs`."""
    return f"{enumerated(counts)} {device_word(device)}{'' if counts == (1,) else 's'}"


def row_text(names: Mapping[Configuration, str], configuration: Configuration, gpus: int) -> str:
    """Return a row's name: `mnist_cnn/ddp on 2 GPUs` or `mnist_cnn/ddp on 2 CPU ranks`."""
    return f"{names[configuration]} on {devices_text(configuration.device, gpus)}"


def row_texts(rows: Iterable[tuple[str, int]], device: str, most: int | None = None) -> list[str]:
    """Group rows (name, devices): `gpt/ddp on 1 and 2 GPUs`; after `most` names, count the rest."""
    by_name = by_key(rows)
    texts = [f"{name} on {devices_text(device, *sorted(gpus))}" for name, gpus in by_name.items()]
    more = sum(map(len, [*by_name.values()][most:])) if most else 0
    return [*texts[:most], *([counted(more, "more row")] if more else [])]


def times_text(runs: Iterable[Run], otherwise: str) -> str:
    """Return when the first and the last run began, `2026-11-20 02:10 to 02:31` (UTC).

    If no run has a start time, return the ISO timestamp `otherwise`, shortened to minutes.
    """
    if not (starts_s := sorted(run.started_at_s for run in runs if run.started_at_s is not None)):
        return to_minutes(otherwise)
    return span_text(*(datetime.fromtimestamp(at_s, UTC) for at_s in (starts_s[0], starts_s[-1])))


def span_text(began: datetime, last: datetime) -> str:
    """Format a time range: `2026-11-20 02:10 to 02:31`."""
    ends = format_range([f"{moment:%Y-%m-%d %H:%M}" for moment in (began, last)])
    return ends.replace(f" to {began:%Y-%m-%d} ", " to ")


def software_text(environment: Environment) -> str:
    """List the software versions that affect a measurement: `torch 2.15.0, CUDA 13.2, …`."""
    on_gpu = is_gpu(environment.device)
    versions = {
        "torch": environment.torch_version,
        "CUDA": environment.cuda_version if on_gpu else None,
        "NCCL": environment.nccl_version,
        "ROCm": environment.rocm_version if on_gpu else None,
        "RCCL": environment.rccl_version,
        "driver": environment.driver_version,
        "Python": environment.python_version,
        "cases": environment.cases_revision,
    }
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)


def injection_warning(injections: Sequence[str], device: str = "", *counts: int) -> str:
    """Return the warning `INJECTED data=5ms: not a real result`; empty without injected faults.

    It also says on which of the `counts` of devices the faulty rank does not exist.
    """
    rank = min(map(int, re.findall(r"=(\d+)[:@]", " ".join(injections))), default=0)
    few = sorted(count for count in counts if count <= rank)
    absent = f"; on {devices_text(device, *few)} there is no rank {rank}" if few else ""
    return f"INJECTED {', '.join(injections)}: not a real result{absent}" if injections else ""


def bounds_text(estimate: Estimate, form: Callable[[float], str]) -> str:
    """Format the interval of an estimate, `[1.80, 1.93]`; empty without an interval."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"[{form(estimate.low)}, {form(estimate.high)}]"


def known_text(value: float | None, form: Callable[[float], str]) -> str:
    """Format a number; if it is None (unknown), return `–`."""
    return UNKNOWN if value is None else form(value)


def percent_text(fraction: float, more: int = 0) -> str:
    """Format a change as `−9.1 %`, or above +1000 % as a factor, `×12.0`; `more`: extra digits."""
    if fraction > 10:
        return f"×{significant(1 + fraction, 3 + more)}"
    return format_percent(fraction, signed=True, decimals=1 + more)


def spread_text(estimate: Estimate, form: Callable[[float], str]) -> str:
    """Format an estimate's interval as `±2.1 %`, or as bounds if it is wide; empty if unknown."""
    if estimate.low is None or estimate.high is None:
        return ""
    half = (estimate.high - estimate.low) / 2 / estimate.value
    return f"±{format_percent(half)}" if half <= _WIDEST_SYMMETRIC else bounds_text(estimate, form)


def is_uncertain(estimate: Estimate | None) -> bool:
    """True if a bound of the interval differs from the value by more than a factor of two."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return False
    return estimate.value > 2 * estimate.low or estimate.high > 2 * estimate.value


def amount_text(value: float, unit: str) -> str:
    """Format a value with its unit (`s`, `bytes` or `J`): `14.2 ms`, `4.12 GiB`, `0.310 J`.

    Such quantities cannot be negative; if noise puts a value below zero, it is shown as about zero.
    """
    if value < 0:
        return f"about 0 {'ms' if unit == 's' else unit}"
    if unit == "s":
        return format_seconds(value)
    return format_bytes(value) if unit == "bytes" else f"{significant(value)} {unit}"


def rate_word(configuration: Configuration | None) -> str:
    """Return `performance` if another metric replaces the step time, else `throughput`."""
    has_metric = configuration is not None and configuration.metric is not None
    return "performance" if has_metric else "throughput"


def change_texts(change: Estimate) -> list[str]:
    """Format a change and its bounds, with enough digits to differ: `−9.1 %`, `−10.2 %`, `−8.0 %`.

    Without an interval, return only the change. If the interval contains zero and a bound is over
    twice or under half of the change (as factors: 0.91 for −9 %), return only `UNCERTAIN`.
    """
    if change.low is None or change.high is None:
        return [percent_text(change.value)]
    if change.low <= 0 <= change.high and is_uncertain(change.mapped(lambda part: 1 + part)):
        return [UNCERTAIN]
    value_text, *ends = format_distinct(percent_text, change.value, change.low, change.high)
    # An interval below zero must not end at `+0.0 %`.
    pairs = zip((change.low, change.high), ends, strict=True)
    return [value_text, *(percent_text(n, 1) if n < 0 and t[0] == "+" else t for n, t in pairs)]


def change_text(change: Estimate) -> str:
    """Format a change with its interval: `−9.1 % [−10.2 %, −8.0 %]`."""
    value, *ends = change_texts(change)
    return f"{value} [{', '.join(ends)}]" if ends else value


def found_change_text(change: Estimate | None) -> str:
    """Format a detected change, and say if its size is uncertain; return `–` if it is None."""
    if change is None:
        return UNKNOWN
    text = change_text(change)
    return f"{percent_text(change.value)}, {text}" if text == UNCERTAIN else text


def verdict_word(verdict: Verdict) -> str:
    """Return the verdict as a word, in capitals unless it is a pass."""
    return verdict.value if verdict.is_pass else verdict.value.upper()


def worst_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Sort verdicts by severity: losses, then those that are neither loss nor pass, then passes."""
    return sorted(verdicts, key=lambda verdict: (verdict.weight, [*Verdict].index(verdict)))


def counted_verdicts(verdicts: Iterable[Verdict]) -> str:
    """Count the verdicts, the worst first: `1 regressed, 3 ok`."""
    counts = Counter(worst_first(verdicts))
    return ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items())
