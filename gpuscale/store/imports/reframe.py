"""Import run reports and performance logs of ReFrame (data version 4)."""

import csv
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gpuscale.base.errors import DecodeError
from gpuscale.base.grouping import by_key
from gpuscale.base.host import UNRECORDED, UNRECORDED_GPU
from gpuscale.records.record import from_builtins, from_json
from gpuscale.store.imports.session import Defaults, RecordedValue, Reference, Session, moment_s
from gpuscale.workload.printed_figures import positive

_NOT_MEASURED = ("skip", "abort")
_PLAIN_ENVIRONMENTS = ("builtin", "default", "")
_DAY_S = 86400.0
_NOT_A_NUMBER = re.compile(r"(?<=[\[:,])\s*-?(?:NaN|Infinity)(?=\s*[,\]}])")
"""Pattern of NaN and infinities, which ReFrame writes although JSON does not allow them."""
_PARTS = ("value", "ref", "lower_thres", "upper_thres", "unit")
_NONE = ("", "null", "None", "nan", "inf", "-inf", None)


class _Case(
    msgspec.Struct, rename={"nodes": "job_nodelist", "ended_s": "job_completion_time_unix"}
):
    """A test case of a ReFrame report, or a line of a performance log; most fields are optional."""

    name: str
    result: str = "pass"
    environ: str | None = None
    system: str | None = None
    partition: str | None = None
    perfvalues: dict[str, list[Any]] | None = None
    """Value, reference, lower and upper threshold and unit of each variable."""
    fail_phase: str | None = None
    num_tasks: int | None = None
    num_tasks_per_node: int | None = None
    num_gpus_per_node: int | None = None
    nodes: list[str] | None = None
    ended_s: float | None = None

    @property
    def place(self) -> str:
        return ":".join(filter(None, (self.system, self.partition)))

    @property
    def gpus(self) -> int:
        """Number of GPUs that the test requested; if none, its number of tasks, or 1 if unknown."""
        tasks = max(1, self.num_tasks or 1)
        if not self.num_gpus_per_node:
            return tasks
        return self.num_gpus_per_node * math.ceil(tasks / (self.num_tasks_per_node or tasks))

    def values(self) -> Iterator[RecordedValue]:
        """Yield the test's performance values that are finite and above 0."""
        with_environment = f"{self.name} +{self.environ}"
        is_plain = (self.environ or "") in _PLAIN_ENVIRONMENTS
        for key, entry in (self.perfvalues or {}).items():
            value, expected, lower, upper, unit = [*entry, None, None, None, None, None][:5]
            if found := positive(value):
                # A test that has only a lower threshold must not fall below it.
                is_one_sided = (lower is None) != (upper is None)
                # A reference of 0 means that ReFrame has none.
                wanted = positive(expected)
                least, most = (None if each in _NONE else float(each) for each in (lower, upper))
                yield RecordedValue(
                    case=self.name if is_plain else with_environment,
                    metric=key.rpartition(":")[2],
                    value=found,
                    unit=unit or "",
                    more_is_better=upper is None if is_one_sided else None,
                    device=UNRECORDED_GPU if self.num_gpus_per_node else UNRECORDED,
                    gpus=self.gpus,
                    hosts=tuple(self.nodes or ()),
                    at_s=self.ended_s,
                    published=None if wanted is None else Reference(wanted, least, most),
                )


class _Info(msgspec.Struct):
    uuid: str | None = None
    hostname: str | None = None
    time_start_unix: float | None = None


class _Part(msgspec.Struct):
    testcases: list[_Case] = []


class _Report(msgspec.Struct):
    session_info: _Info
    runs: list[_Part]


def sessions(path: Path, text: str, _: Defaults) -> Iterator[Session]:
    """Yield a session per system and partition of a run report, or per UTC day of a log file."""
    if text.lstrip().startswith("{"):
        report = from_json(_Report, _NOT_A_NUMBER.sub("null", text))
        cases = [case for part in report.runs for case in part.testcases]
        info, ends_s = report.session_info, [case.ended_s for case in cases if case.ended_s]
        began_s = info.time_start_unix or min(ends_s, default=0.0)
        if not began_s:
            problem = "neither the session nor any test has a time, so the report cannot be dated"
            raise DecodeError("session_info", problem)
        key = info.uuid or f"{path.stem}-{min(ends_s, default=0):.0f}"
        for of_place in by_key((case.place, case) for case in cases).values():
            yield _session(key, began_s, of_place, info.hostname)
        return
    logged = ((case.ended_s or 0.0, case) for case in _logged(path, text))
    days = by_key((ended_s - ended_s % _DAY_S, case) for ended_s, case in logged)
    for day_s, of_day in days.items():
        yield _session(f"{path.stem}-log", day_s, of_day)


def _session(key: str, began_s: float, cases: Sequence[_Case], host: str | None = None) -> Session:
    values: list[RecordedValue] = []
    without = []
    for case in cases:
        found = [*case.values()] if case.result not in _NOT_MEASURED else []
        values += found
        if not found:
            why = "no value" if case.result == "pass" else case.result
            phase = f" in {case.fail_phase}" if case.fail_phase else ""
            without.append(f"{case.name} ({why}{phase})")
    return Session(
        key=key,
        began_s=began_s,
        system=cases[0].place or None,
        host=host,
        values=tuple(values),
        without_value=tuple(without),
    )


def _logged(path: Path, text: str) -> Iterator[_Case]:
    lines = text.splitlines()
    if not lines or "|" not in lines[0]:
        raise DecodeError("", "this is neither a run report nor a performance log of ReFrame")
    for row in csv.DictReader(lines, delimiter="|"):
        fields = {name: value for name, value in row.items() if name and value not in _NONE}
        names = map(fields.get, ("display_name", "name", "check_name"))
        times = map(fields.get, ("job_completion_time_unix", "job_completion_time"))
        if (ended_s := moment_s(next(filter(None, times), ""))) is None:
            problem = "a performance log needs the column job_completion_time(_unix)"
            raise DecodeError("", f"{problem}; add it to handlers_perflog of the site")
        metrics = [name.removesuffix("_value") for name in fields if name.endswith("_value")]
        derived = {
            "name": next(filter(None, names), path.stem),
            "perfvalues": {of: [fields.get(f"{of}_{part}") for part in _PARTS] for of in metrics},
            "job_nodelist": [*filter(None, re.split(r"[,\s]+", fields.get("job_nodelist", "")))],
            "job_completion_time_unix": ended_s,
        }
        # The folders that contain a log are named after the system and the partition.
        places = {"system": path.parent.parent.name, "partition": path.parent.name}
        yield from_builtins(_Case, {**places, **fields, **derived}, strict=False)
