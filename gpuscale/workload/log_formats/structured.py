"""Formats whose lines contain JSON."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from gpuscale.workload.log_formats.log_format import LogFormat, Mark, number
from gpuscale.workload.step_report import PREFIX

T = TypeVar("T")


class Reported(msgspec.Struct, frozen=True):
    """Content of the JSON object after `GPUSCALE` in a line printed by `gpuscale.report`."""

    step: int
    samples: int | None = None
    """Samples per step over all ranks."""
    epoch: int | None = None
    loss: float | str | None = None
    """Loss, as text if JSON cannot represent the number: `"nan"`, `"inf"`."""


def json_after(prefix: str, line: str, kind: type[T]) -> T | None:
    """Parse the JSON after a prefix in a line; None if there is no valid JSON of this type."""
    start = line.find(f"{prefix}{{")
    if start < 0:
        return None
    try:
        return msgspec.json.decode(line[start + len(prefix) :], type=kind)
    except msgspec.DecodeError:
        return None


def read_reported(line: str) -> Mark | None:
    """Read a line printed by `gpuscale.report`."""
    told = json_after(PREFIX, line, Reported)
    if told is None:
        return None
    return Mark(told.step, told.epoch, samples_per_step=told.samples, loss=number(told.loss))


def read_dllogger(line: str) -> Mark | None:
    """Read a DLLogger JSON line of a training step; a validation line has 3 numbers as `step`."""
    match json_after("DLLL ", line, dict):
        case {"type": "LOG", "step": [int(epoch), int(step)], "data": dict(data)}:
            return Mark(
                step=step,
                epoch=epoch,
                figure=number(data.get("train.total_ips")),
                loss=number(data.get("train.loss", data.get("step_loss", data.get("loss")))),
            )
    return None


def mlperf_reader(key: str) -> Callable[[str], Mark | None]:
    """Return a function that reads MLPerf's `tracked_stats` lines with a given key."""

    def read(line: str) -> Mark | None:
        match json_after(":::MLLOG ", line, dict):
            case {
                "event_type": "POINT_IN_TIME",
                "key": "tracked_stats",
                "value": dict(value),
                "metadata": {"step": int(step)},
            } if key in value:
                return Mark(step=step, figure=number(value[key]))
        return None

    return read


FORMATS = (
    LogFormat(
        name="gpuscale",
        project="`gpuscale.report`, or a line of your own",
        example='GPUSCALE {"step": 10, "samples": 640}',
        read=read_reported,
    ),
    LogFormat(
        name="dllogger-json",
        project="NVIDIA DeepLearningExamples, DLLogger's JSON",
        example=(
            'DLLL {"timestamp": "1570716922.790879", "type": "LOG", "step": [0, 10], '
            '"data": {"train.loss": 8.996875, "train.total_ips": 674.7180797941068}}'
        ),
        read=read_dllogger,
        unit="samples/s",
        span="step",
    ),
    LogFormat(
        name="mlperf-throughput",
        project="MLPerf logging, ResNet",
        example=(
            ':::MLLOG {"namespace": "", "time_ms": 1684449087549, "event_type": "POINT_IN_TIME", '
            '"key": "tracked_stats", "value": {"throughput": 10609517.428350862}, '
            '"metadata": {"file": "fit.py", "lineno": 997, "step": 2}}'
        ),
        read=mlperf_reader("throughput"),
        counts="epochs",
        unit="samples/s",
        span="interval",
    ),
    LogFormat(
        name="mlperf-step-time",
        project="MLPerf logging, GPT-3",
        example=(
            ':::MLLOG {"namespace": "", "time_ms": 1696579755658, "event_type": "POINT_IN_TIME", '
            '"key": "tracked_stats", "value": {"train_step_timing": 0.9640698432922363}, '
            '"metadata": {"file": "c.py", "lineno": 274, "step": 11010048}}'
        ),
        read=mlperf_reader("train_step_timing"),
        counts="tokens",
        unit="s/step",
        span="interval",
    ),
)
