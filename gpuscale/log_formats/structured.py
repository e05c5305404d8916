"""Formats whose lines hold JSON."""

from collections.abc import Callable
from typing import Any

import msgspec

from gpuscale.log_formats.log_format import LogFormat, Mark


def json_after(prefix: str, line: str) -> dict[str, Any] | None:
    """The JSON object that follows a prefix somewhere in the line."""
    start = line.find(prefix)
    if start < 0:
        return None
    try:
        told = msgspec.json.decode(line[start + len(prefix) :])
    except msgspec.DecodeError:
        return None
    return told if isinstance(told, dict) else None


def figure_of(value: object) -> float | None:
    """The number that is a JSON value or that its text says."""
    if isinstance(value, (int, float, str)):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def read_dllogger(line: str) -> Mark | None:
    """What DLLogger's JSON tells of one step; a step of validation has three numbers."""
    told = json_after("DLLL ", line)
    match told:
        case {"type": "LOG", "step": [int(epoch), int(step)], "data": dict(data)}:
            return Mark(
                step=step,
                epoch=epoch,
                figure=figure_of(data.get("train.total_ips")),
                loss=figure_of(data.get("train.loss", data.get("step_loss", data.get("loss")))),
            )
    return None


def mlperf_reader(key: str) -> Callable[[str], Mark | None]:
    """Returns a function that reads `tracked_stats` of MLPerf with that key."""

    def read(line: str) -> Mark | None:
        match json_after(":::MLLOG ", line):
            case {
                "event_type": "POINT_IN_TIME",
                "key": "tracked_stats",
                "value": dict(value),
                "metadata": {"step": int(step)},
            } if key in value:
                return Mark(step=step, figure=figure_of(value[key]))
        return None

    return read


FORMATS = (
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
