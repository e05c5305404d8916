"""Formats of the lines that training scripts print, and detection of a script's format.

To add a format, add an entry to `_FORMATS`. `LogFormat.read` parses a line returned by `plain`, and
returns a `Mark`, or None if the line has another format. A carriage return also ends a line.
"""

import re
from collections.abc import Mapping

import msgspec

from gpuscale.workload.log_lines import (
    EPOCH,
    HF_LOSS,
    NUMBER,
    VALIDATION,
    LogFormat,
    Mark,
    mark_of,
    number,
    reader,
    whole,
)
from gpuscale.workload.step_report import PREFIX

# Percentage, counter, elapsed and remaining time, rate; the bar itself may be missing (ncols=0),
# and so may the total, the remaining time or the rate.
TQDM = re.compile(
    r"(?:\d+%(?:\|[^|]*\|)? *(?P<step>\d+)/(?P<total>\d+) \[[\d:]+<[\d:?]+"
    r"|\b(?P<count>\d+)it \[[\d:]+)"
    r"(?:, *[\d.?]+ ?(?:s/)?(?P<unit>[A-Za-z]+))?"
)
TQDM_STEPS = frozenset({"it", "its", "iter", "iters", "batch", "batches", "ba", "step", "steps"})
VALIDATING = re.compile(r"\b(?:valid|val\b|sanity|test|eval)", re.IGNORECASE)
PREPARING = re.compile(
    r"\b(?:predict|infer|download|load|fetch|read|writ|sav|map\b|filter|tokeniz|generat|process|"
    r"preproc|extract|cach|collat)",
    re.IGNORECASE,
)
LOSS = re.compile(rf"\b(?:train_)?loss[=:] ?(?P<loss>{NUMBER})")


class Reported(msgspec.Struct, frozen=True):
    """Content of the JSON object after `GPUSCALE` in a line printed by `gpuscale.report`."""

    step: int
    samples: int | None = None
    """Samples per step over all ranks."""
    epoch: int | None = None
    loss: float | str | None = None
    """Loss, as text if JSON cannot represent the number: `"nan"`, `"inf"`."""


def read_reported(line: str) -> Mark | None:
    """Parse a line printed by `gpuscale.report`; return None for any other line."""
    start = line.find(f"{PREFIX}{{")
    if start < 0:
        return None
    try:
        state = msgspec.json.decode(line[start + len(PREFIX) :], type=Reported)
    except msgspec.DecodeError:
        return None
    return Mark(state.step, state.epoch, samples_per_step=state.samples, loss=number(state.loss))


def read_tqdm(line: str) -> Mark | None:
    """Parse a tqdm bar that counts steps, or Hugging Face Trainer's metrics; else return None."""
    is_bar = " [" in line and ("<" in line or "it [" in line)
    bar = TQDM.search(line) if is_bar else None
    if bar is None:
        if "'eval_loss'" in line or "'eval_runtime'" in line:
            return VALIDATION
        found = HF_LOSS.search(line)
        return found and mark_of(found.groupdict())
    if (bar["unit"] or "it") not in TQDM_STEPS:
        return None
    description = line[: bar.start()]
    if VALIDATING.search(description):
        return VALIDATION
    if PREPARING.search(description):
        return None
    epoch = EPOCH.search(description)
    loss = LOSS.search(line, bar.end())
    return Mark(
        step=whole(bar["step"] or bar["count"]),
        epoch=epoch and int(epoch[1]),
        total_steps=whole(bar["total"]),
        loss=loss and number(loss["loss"]),
    )


_LOSS = rf"\bloss[\s:=]*(?P<loss>{NUMBER})"
_REPORT = rf".{{0,80}}?(?:{_LOSS}|\d ?(?:[mu]?s|sec(?:onds?)?)\b|/(?:s|sec|step)\b)"
_EPOCH = r"\bepoch[\s:=\[#]*(?P<epoch>\d+)\b"
_IN_BRACKETS = r"\[ *(?P<step>\d+) */ *(?P<total>\d+)\]"
_ITERATIONS = r"(?:it|iter|iteration|batch|step)(?:e?s)?"
STEP_LINES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # A batch without a total is often a batch size.
        rf"(?:{_EPOCH}.{{0,40}}?)?\b(?:step|iter(?:ation)?|batch(?=[\s:=\[#]*\d+ */ *\d))[\s:=\[#]*"
        rf"(?P<step>\d+)\b(?: */ *(?P<total>\d+))?{_REPORT}",
        rf"\[(?P<epoch>\d+)(?: */ *\d+)?\]{_IN_BRACKETS}{_REPORT}",
        # Without an epoch in brackets, only a rate rules out that it counts epochs or samples.
        rf"(?:{_EPOCH}[^\[]{{0,40}})?{_IN_BRACKETS}"
        rf"(?=.{{0,120}}\d ?(?:{_ITERATIONS}/s|m?s/{_ITERATIONS})\b)(?:.{{0,80}}?{_LOSS})?",
    )
)


def read_step_line(line: str) -> Mark | None:
    """Parse a line with a step, then a loss, a time or a rate; return None for any other line."""
    found = next(filter(None, (pattern.search(line) for pattern in STEP_LINES)), None)
    if found is None:
        return None
    return VALIDATION if VALIDATING.search(line) else mark_of(found.groupdict())


_FORMATS = (
    LogFormat(
        name="imagenet",
        example=(
            "Epoch: [0][  10/1307]\tTime  0.779 ( 5.211)\tData  0.000 ( 0.060)\t"
            "Loss 2.3915e+01 (1.5221e+01)\tAcc@1   0.00 (  5.68)\tAcc@5   1.95 (  9.94)"
        ),
        read=reader(
            r"Epoch: ?\[(?P<epoch>\d+)\]\[ *(?P<step>\d+)/(?P<total>\d+)\]\s+"
            rf"Time:? +[\d.]+(?:.*?\bLoss:?\s+(?P<loss>{NUMBER}))?",
            holds="Epoch:",
        ),
    ),
    LogFormat(
        name="timm",
        example=(
            "Train: 0 [  50/1251 (  4%)]  Loss: 6.94 (6.95)  Time: 0.312s,  820.51/s  "
            "(0.401s,  638.40/s)  LR: 1.000e-05  Data: 0.010 (0.044)"
        ),
        read=reader(
            r"Train: (?P<epoch>\d+) \[ *(?P<step>\d+)/(?P<total>\d+) \([^)]*\)\]"
            rf"(?:.*?\bLoss: +(?P<loss>{NUMBER}))?"
            r"(?:.*?\bTime: [\d.]+s, +(?P<rate>[\d.]+)/s)?",
            holds="Train: ",
        ),
    ),
    LogFormat(
        name="torchvision",
        example=(
            "Epoch: [0]  [  10/5005]  eta: 0:31:12  lr: 0.1  img/s: 1234.567  loss: 6.9 (7.0)  "
            "acc1: 0.0 (0.1)  acc5: 0.5 (0.6)  time: 0.3743  data: 0.0003  max mem: 10000"
        ),
        read=reader(
            r"Epoch: \[(?P<epoch>\d+)\]\s+\[ *(?P<step>\d+)/(?P<total>\d+)\]\s+eta:"
            rf"(?:.*?\bloss: +(?P<loss>{NUMBER}))?",
            holds="Epoch: [",
        ),
    ),
    LogFormat(
        name="megatron",
        example=(
            " [2026-04-27 00:00:01] iteration        1/       3 | consumed samples:            2 | "
            "elapsed time per iteration (ms): 4000.0 | learning rate: 1.000000E-04 | "
            "global batch size:     2 | lm loss: 3.000000E+00 | loss scale: 1.0 |"
        ),
        read=reader(
            r"\biteration +(?P<step>\d+)/ *(?P<total>\d+) \|"
            r".*?elapsed time per iteration \(ms\): *[\d.]+"
            r"(?:.*?\| *global batch size: *(?P<samples>\d+))?"
            rf"(?:.*?\| *(?:[a-z]+ )?loss: *(?P<loss>{NUMBER}))?",
            holds="elapsed time per iteration",
            validation="validation loss at iteration ",
        ),
    ),
    LogFormat(
        name="deepspeed",
        example=(
            "[2023-08-02 00:41:17,936] [INFO] [timer.py:215:stop] epoch=0/micro_step=10/"
            "global_step=10, RunningAvgSamplesPerSec=220.69, CurrSamplesPerSec=222.88, "
            "MemAllocated=0.07GB, MaxMemAllocated=0.1GB"
        ),
        read=reader(
            r"\bepoch=(?P<epoch>\d+)/micro_step=\d+/global_step=(?P<step>\d+), "
            r"RunningAvgSamplesPerSec=[^,]*, CurrSamplesPerSec=(?P<rate>[\d.]+)",
            holds="CurrSamplesPerSec=",
        ),
    ),
    LogFormat(name="gpuscale", example='GPUSCALE {"step": 10, "samples": 640}', read=read_reported),
    LogFormat(
        name="tqdm",
        example="Epoch 0:  50%|█████     | 25/50 [01:35<01:35,  3.80s/it, train_loss=2.30]",
        read=read_tqdm,
        generic=1,
    ),
    LogFormat(
        name="step",
        example="Epoch [1/5], Step [100/600], Loss: 0.1234",
        read=read_step_line,
        generic=2,
    ),
)
FORMATS: Mapping[str, LogFormat] = {one.name: one for one in _FORMATS}


class Recognition:
    """Detector of the log formats that match the lines of one script."""

    def __init__(self) -> None:
        self._fitting: dict[str, LogFormat] = {}

    def take(self, line: str) -> None:
        """Examine the next line, as returned by `plain`."""
        for name, one in FORMATS.items():
            mark = None if name in self._fitting else one.read(line)
            if mark is not None and mark.step is not None:
                self._fitting[name] = one

    @property
    def fitting(self) -> tuple[LogFormat, ...]:
        """The least generic formats among those that match the lines examined so far."""
        found = self._fitting.values()
        least = min((one.generic for one in found), default=0)
        return tuple(one for one in found if one.generic == least)
