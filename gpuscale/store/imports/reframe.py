"""Run reports and performance logs of ReFrame (data versions 2 to 4), as sessions of values."""

import csv
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from gpuscale.base.errors import DecodeError
from gpuscale.records.json_text import from_json
from gpuscale.store.imports.session import RecordedValue, Session

_NOT_MEASURED = ("skip", "abort")
_PLAIN_ENVIRONMENTS = ("builtin", "default", "")
_NONE = ("", "null", "None", "nan")


class _Case(msgspec.Struct, rename={"nodes": "job_nodelist"}):
    """A test case of a report; the schema asks for few of its fields."""

    name: str
    result: str = "pass"
    environ: str | None = None
    system: str | None = None
    partition: str | None = None
    perfvalues: dict[str, list[Any]] | None = None
    perfvars: list[dict[str, Any]] | None = None
    """Performance variables in reports before data version 4."""
    fail_phase: str | None = None
    num_tasks: int | None = None
    num_tasks_per_node: int | None = None
    num_gpus_per_node: int | None = None
    nodes: list[str] | None = None
    job_completion_time_unix: float | None = None
    check_vars: dict[str, Any] | None = None


class _Info(msgspec.Struct):
    uuid: str | None = None
    hostname: str | None = None
    time_start_unix: float | None = None
    time_start: str | None = None


class _Part(msgspec.Struct):
    testcases: list[_Case] = []


class _Report(msgspec.Struct):
    session_info: _Info
    runs: list[_Part]


def sessions(path: Path, text: str) -> Iterator[Session]:
    """Yield the sessions in a run report, or one for each day of a performance log."""
    if text.lstrip().startswith("{"):
        yield from _of_report(path, from_json(_Report, text))
    else:
        yield from _of_log(path, text)


def _of_report(path: Path, report: _Report) -> Iterator[Session]:
    info = report.session_info
    cases = [case for part in report.runs for case in part.testcases]
    values: dict[str, list[RecordedValue]] = defaultdict(list)
    without: dict[str, list[str]] = defaultdict(list)
    for case in cases:
        system = ":".join(filter(None, (case.system, case.partition)))
        found = list(_values(case)) if case.result not in _NOT_MEASURED else []
        values[system] += found
        if not found:
            why = f"{case.result} in {case.fail_phase}" if case.fail_phase else case.result
            without[system].append(f"{case.name} ({'no value' if why == 'pass' else why})")
    ends_s = [case.job_completion_time_unix for case in cases if case.job_completion_time_unix]
    for system in values:
        yield Session(
            key=info.uuid or f"{path.stem}-{min(ends_s, default=0):.0f}",
            began_at=_began(info, ends_s),
            system=system or None,
            host=info.hostname,
            values=tuple(values[system]),
            without_value=tuple(without[system]),
        )


def _began(info: _Info, ends_s: list[float]) -> datetime:
    if info.time_start_unix is not None or ends_s:
        return datetime.fromtimestamp(info.time_start_unix or min(ends_s), UTC)
    try:
        return datetime.fromisoformat(info.time_start or "").astimezone(UTC)
    except ValueError:
        problem = "neither the session nor a test says when it was; the report cannot be placed"
        raise DecodeError("session_info", problem) from None


def _values(case: _Case) -> Iterator[RecordedValue]:
    environment = case.environ or ""
    name = case.name if environment in _PLAIN_ENVIRONMENTS else f"{case.name} +{environment}"
    for variable, value, lower, upper, unit in _variables(case):
        if not _is_positive(value):
            continue
        yield RecordedValue(
            case=name,
            metric=variable,
            value=float(value),
            unit=unit or "",
            more_is_better=_direction(lower, upper),
            gpus=_gpus(case.num_tasks, case.num_tasks_per_node, case.num_gpus_per_node),
            hosts=tuple(case.nodes or ()),
            at_s=case.job_completion_time_unix,
        )


def _variables(case: _Case) -> Iterator[tuple[str, Any, Any, Any, str | None]]:
    """Yield name, value, lower and upper threshold and unit of each performance variable."""
    for key, entry in (case.perfvalues or {}).items():
        value, _, lower, upper, unit = [*entry, None, None, None, None, None][:5]
        yield key.rpartition(":")[2], value, lower, upper, unit
    for old in case.perfvars or ():
        lower, upper = old.get("thres_lower"), old.get("thres_upper")
        yield str(old.get("name")), old.get("value"), lower, upper, old.get("unit")


def _is_positive(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > 0


def _direction(lower: Any, upper: Any) -> bool | None:
    """True if more is better: a test that has only a lower threshold must not fall below it."""
    return None if (lower is None) == (upper is None) else upper is None


def _gpus(tasks: int | None, tasks_per_node: int | None, gpus_per_node: int | None) -> int:
    """Return the GPUs of a test if it asked for any, else its tasks; an unknown number counts 1."""
    tasks = max(1, tasks or 1)
    if not gpus_per_node:
        return tasks
    return gpus_per_node * math.ceil(tasks / (tasks_per_node or tasks))


def _of_log(path: Path, text: str) -> Iterator[Session]:
    """Yield a session for each UTC day of a log, which has no sessions of its own."""
    lines = text.splitlines()
    if not lines or "|" not in lines[0]:
        raise DecodeError("", "this is neither a run report nor a performance log of ReFrame")
    rows = csv.DictReader(lines, delimiter="|")
    names = rows.fieldnames or ()
    days: dict[str, list[RecordedValue]] = defaultdict(list)
    without: dict[str, list[str]] = defaultdict(list)
    system = host = None
    for row in rows:
        at_s = _completed_s(row)
        if at_s is None:
            problem = "a performance log needs the column job_completion_time"
            raise DecodeError("", f"{problem}(_unix); add it to handlers_perflog of the site")
        day = f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d}"
        found = list(_logged_values(row, names, path.stem, at_s))
        days[day] += found
        if not found and row.get("result") not in _NOT_MEASURED:
            without[day].append(f"{row.get('name') or path.stem} ({row.get('result')})")
        # The folders of a log are named by system and partition.
        place = [row.get("system") or path.parent.parent.name]
        place.append(row.get("partition") or path.parent.name)
        system = ":".join(filter(None, place))
    for day, values in days.items():
        yield Session(
            key=f"{path.stem}-log",
            began_at=datetime.fromisoformat(day).replace(tzinfo=UTC),
            system=system,
            host=host,
            values=tuple(values),
            without_value=tuple(without[day]),
        )


def _logged_values(
    row: Mapping[str, str], names: Any, stem: str, at_s: float
) -> Iterator[RecordedValue]:
    recorded = partial(
        RecordedValue,
        case=row.get("display_name") or row.get("name") or row.get("check_name") or stem,
        gpus=_gpus(*(_whole(row.get(f"num_{what}")) for what in _COUNTS)),
        hosts=tuple(filter(None, re.split(r"[,\s]+", row.get("job_nodelist") or ""))),
        at_s=at_s,
    )
    pairs = {name.removesuffix("_value"): name for name in names if name.endswith("_value")}
    for variable, column in pairs.items():
        # Older logs have one variable a line, named in a column of its own.
        prefix, name = variable, variable
        if variable == "perf":
            name = row.get("perf_var") or variable
        value = _number(row.get(column))
        lower, upper = (_number(row.get(f"{prefix}_{end}_thres")) for end in ("lower", "upper"))
        if value is not None and value > 0:
            yield recorded(
                metric=name,
                value=value,
                unit=row.get(f"{prefix}_unit") or "",
                more_is_better=_direction(lower, upper),
            )


_COUNTS = ("tasks", "tasks_per_node", "gpus_per_node")


def _completed_s(row: Mapping[str, str]) -> float | None:
    if (found := _number(row.get("job_completion_time_unix"))) is not None:
        return found
    try:
        return datetime.fromisoformat(row.get("job_completion_time") or "").timestamp()
    except ValueError:
        return None


def _number(text: str | None) -> float | None:
    if text is None or text in _NONE:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _whole(text: str | None) -> int | None:
    value = _number(text)
    return None if value is None else int(value)
