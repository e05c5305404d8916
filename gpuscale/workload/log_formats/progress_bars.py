"""Log formats that many scripts share: tqdm and Keras progress bars, and `step 50 loss 0.1`."""

import re
from dataclasses import replace

from gpuscale.workload.log_formats.log_format import (
    NUMBER,
    VALIDATION,
    LogFormat,
    Mark,
    mark_of,
    number,
    reader,
    whole,
)

# Percentage, counter, elapsed and remaining time, rate; the bar itself may be missing (ncols=0),
# and so may the end, the remaining time or the rate.
TQDM = re.compile(
    r"(?:\d+%(?:\|[^|]*\|)? *(?P<step>\d+)/(?P<total>\d+) \[[\d:]+<[\d:?]+"
    r"|\b(?P<count>\d+)it \[[\d:]+)"
    r"(?:, *(?:(?P<seconds>[\d.]+)s/(?P<slow_unit>\w+)"
    r"|(?P<rate>[\d.]+|\?) ?(?P<unit>[A-Za-z]+)/s))?"
)
TQDM_STEPS = frozenset({"it", "its", "iter", "iters", "batch", "batches", "ba", "step", "steps"})
TQDM_SAMPLES = frozenset(
    {"img", "image", "images", "sample", "samples", "ex", "example", "examples"}
)
VALIDATING = re.compile(r"\b(?:valid|val\b|sanity|test|eval)", re.IGNORECASE)
PREPARING = re.compile(
    r"\b(?:predict|infer|download|load|fetch|read|writ|sav|map\b|filter|tokeniz|generat|process|"
    r"preproc|extract|cach|collat)",
    re.IGNORECASE,
)
EPOCH = re.compile(r"\bepoch:? *\[?(\d+)", re.IGNORECASE)
LOSS = re.compile(rf"\b(?:train_)?loss[=:] ?(?P<loss>{NUMBER})")


def read_tqdm(line: str, units: frozenset[str] = TQDM_STEPS) -> Mark | None:
    """Read a tqdm bar of training or validation; the speed is in seconds per step."""
    if " [" not in line or ("<" not in line and "it [" not in line):
        return None
    bar = TQDM.search(line)
    if bar is None or (bar["slow_unit"] or bar["unit"] or "it") not in units:
        return None
    description = line[: bar.start()]
    if VALIDATING.search(description):
        return VALIDATION
    if PREPARING.search(description):
        return None
    rate = number(bar["rate"])
    epoch = EPOCH.search(description)
    loss = LOSS.search(line, bar.end())
    return Mark(
        step=whole(bar["step"] or bar["count"]),
        epoch=epoch and int(epoch[1]),
        total_steps=whole(bar["total"]),
        figure=1 / rate if rate else number(bar["seconds"]),
        loss=loss and number(loss["loss"]),
    )


def read_tqdm_samples(line: str) -> Mark | None:
    """Read a tqdm bar that counts samples; the speed is in samples per second of one process."""
    mark = read_tqdm(line, TQDM_SAMPLES)
    return replace(mark, figure=1 / mark.figure) if mark and mark.figure else mark


HF_LOSS = re.compile(rf"\{{'loss': '?(?P<loss>{NUMBER})")
HF_SUMMARY = re.compile(
    rf"\{{'train_runtime': .*'train_samples_per_second': '?(?P<figure>{NUMBER})"
    rf"(?:.*'train_loss': '?(?P<loss>{NUMBER}))?"
)


def read_hf_trainer(line: str) -> Mark | None:
    """Read a line of Hugging Face's Trainer: a progress bar, a loss, or the summary of the run."""
    if "{'" not in line:
        bar = read_tqdm(line)
        return bar and replace(bar, figure=None)
    if "'eval_loss'" in line or "'eval_runtime'" in line:
        return VALIDATION
    found = HF_SUMMARY.search(line) or HF_LOSS.search(line)
    return found and mark_of(found.groupdict())


KERAS_STEP_TIME = r"(?P<time>\d+)(?P<unit>ms|us|s)/step"
KERAS_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
KERAS_LOSS = re.compile(rf" - loss: (?P<loss>{NUMBER})")
KERAS_BAR = re.compile(
    r"(?<![\d/])(?P<step>\d+)/(?:(?P<total>\d+) (?:\[[=>.]+\] - |━+ )|Unknown (?:- )?)"
    rf"(?:ETA: )?[\d:]+s?(?: {KERAS_STEP_TIME})?"
)
KERAS_EPOCH = re.compile(
    rf"(?<![\d/])(?P<step>\d+)/(?P=step) - (?P<epoch_time>\d+)s -(?: {KERAS_STEP_TIME}"
    rf"|.* {KERAS_STEP_TIME.replace('time', 'late_time').replace('unit', 'late_unit')})?"
)


def read_keras_bar(line: str) -> Mark | None:
    """Read Keras' progress bar, which is drawn once more after the validation of an epoch."""
    if "/step" not in line and "ETA: " not in line:
        return None
    bar = KERAS_BAR.search(line)
    if bar is None:
        return None
    loss = (found := KERAS_LOSS.search(line)) and number(found["loss"])
    if " - val_" in line:
        return Mark(loss=loss, validated=True)
    return Mark(
        step=int(bar["step"]),
        total_steps=whole(bar["total"]),
        figure=None if bar["time"] is None else int(bar["time"]) * KERAS_SECONDS[bar["unit"]],
        loss=loss,
    )


def read_keras_epoch(line: str) -> Mark | None:
    """Read the line that Keras prints once per epoch with `verbose=2`."""
    if "s - " not in line:
        return None
    found = KERAS_EPOCH.search(line)
    if found is None:
        return None
    steps = int(found["step"])
    loss = KERAS_LOSS.search(line)
    time, unit = found["time"] or found["late_time"], found["unit"] or found["late_unit"]
    seconds = int(found["epoch_time"]) / steps if time is None else int(time) * KERAS_SECONDS[unit]
    return Mark(
        step=steps,
        total_steps=steps,
        figure=seconds,
        loss=loss and number(loss["loss"]),
        validated=" - val_" in line,
    )


STEP_LINE = re.compile(
    r"(?:\bepoch[\s:=\[#]*(?P<epoch>\d+)\b.{0,40}?)?\b(?:step|iter(?:ation)?)[\s:=\[#]*"
    r"(?P<step>\d+)\b(?: */ *(?P<total>\d+))?.{0,80}?"
    rf"(?:\bloss[\s:=]*(?P<loss>{NUMBER})|\d ?(?:[mu]?s|sec(?:onds?)?)\b|/(?:s|sec|step)\b)",
    re.IGNORECASE,
)


def read_step_line(line: str) -> Mark | None:
    """Read a line of a training loop: a step, followed by a loss, a time or a rate."""
    if (found := STEP_LINE.search(line)) is None:
        return None
    return VALIDATION if VALIDATING.search(line) else mark_of(found.groupdict())


FORMATS = (
    LogFormat(
        name="hf-trainer",
        project="Hugging Face Trainer, 4 and 5",
        example=(
            "{'train_runtime': 169.649, 'train_samples_per_second': 252.02, "
            "'train_steps_per_second': 15.768, 'train_loss': 0.27, 'epoch': 5.0}"
        ),
        read=read_hf_trainer,
        unit="samples/s",
        span="run",
        known_by="{'",
    ),
    LogFormat(
        name="tqdm",
        project="tqdm (also Lightning without rich)",
        example="Epoch 0:  50%|█████     | 25/50 [01:35<01:35,  3.80s/it, train_loss=2.30]",
        read=read_tqdm,
        unit="s/step",
        span="interval",
        every_rank_prints=True,
        generic=1,
    ),
    LogFormat(
        name="tqdm-samples",
        project="tqdm that counts images or samples",
        example="Epoch 1/5:  25%|██▌       | 1024/4096 [00:10<00:30, 102.40img/s, loss=0.5]",
        read=read_tqdm_samples,
        counts="samples",
        unit="samples/s",
        span="interval",
        of_all_ranks=False,
        every_rank_prints=True,
        generic=1,
    ),
    LogFormat(
        name="lightning-rich",
        project="Lightning with rich, which draws no bar into a pipe without FORCE_COLOR=1",
        example=(
            "Epoch 0/1  ━━━━━━━━━━━━━━━━━━━━╸━━━━━━━━━━━━━━━━━━━ 11/20 0:00:02 • 0:00:02 5.31it/s "
            "train_loss: 2.303"
        ),
        read=reader(
            r"Epoch (?P<epoch>\d+)/-?\d+ +[━╸╺]+ +(?P<step>\d+)/(?P<total>\d+) [\d:]+ • [-\d:]+"
            rf"(?: +(?P<figure>[\d.]+)it/s)?(?:.*?\b(?:train_)?loss: +(?P<loss>{NUMBER}))?",
            holds=" • ",
            validation="Validation ━",
        ),
        unit="steps/s",
        span="run",
    ),
    LogFormat(
        name="keras",
        project="Keras 2 and 3, the bar",
        example=" 98/196 ━━━━━━━━━━━━━━━━━━━━ 2s 22ms/step - accuracy: 0.2 - loss: 2.1",
        read=read_keras_bar,
        unit="s/step",
        span="run",
    ),
    LogFormat(
        name="keras-epochs",
        project="Keras 2 and 3, verbose=2",
        example="98/98 - 24s - 241ms/step - accuracy: 0.4484 - loss: 1.5",
        read=read_keras_epoch,
        since_last=True,
        unit="s/step",
        span="interval",
    ),
    LogFormat(
        name="step",
        project="any script whose lines have a step or iteration, then a loss, a time or a rate",
        example="Epoch [1/5], Step [100/600], Loss: 0.1234",
        read=read_step_line,
        generic=2,
    ),
)
