"""Lines that training scripts print are read for what they say."""

import math
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest
from statements import known

from gpuscale.base.errors import UsageError
from gpuscale.workload.step_log_formats import (
    FORMATS,
    LogFormat,
    Mark,
    Recognition,
    by_regex,
    plain,
)

PAGE = Path(__file__).parent.parent / "docs" / "commands.md"

TAB = "\t"
# A line that a real script printed in each format, and what it says.
EXAMPLES = {
    "gpuscale": ('GPUSCALE {"step": 10, "samples": 640}', Mark(step=10, samples_per_step=640)),
    "imagenet": (
        "Epoch: [0][  10/1307]\tTime  0.779 ( 5.211)\tData  0.000 ( 0.060)\t"
        "Loss 2.3915e+01 (1.5221e+01)\tAcc@1   0.00 (  5.68)\tAcc@5   1.95 (  9.94)",
        Mark(step=10, epoch=0, total_steps=1307, loss=23.915),
    ),
    "timm": (
        "Train: 0 [  50/1251 (  4%)]  Loss: 6.94 (6.95)  Time: 0.312s,  820.51/s  "
        "(0.401s,  638.40/s)  LR: 1.000e-05  Data: 0.010 (0.044)",
        Mark(step=50, epoch=0, total_steps=1251, samples_per_s=820.51, loss=6.94),
    ),
    "torchvision": (
        "Epoch: [0]  [  10/5005]  eta: 0:31:12  lr: 0.1  img/s: 1234.567  loss: 6.9 (7.0)  "
        "acc1: 0.0 (0.1)  acc5: 0.5 (0.6)  time: 0.3743  data: 0.0003  max mem: 10000",
        Mark(step=10, epoch=0, total_steps=5005, loss=6.9),
    ),
    "megatron": (
        " [2026-04-27 00:00:01] iteration        1/       3 | consumed samples:            2 | "
        "elapsed time per iteration (ms): 4000.0 | learning rate: 1.000000E-04 | "
        "global batch size:     2 | lm loss: 3.000000E+00 | loss scale: 1.0 |",
        Mark(step=1, total_steps=3, samples_per_step=2, loss=3.0),
    ),
    "deepspeed": (
        "[2023-08-02 00:41:17,936] [INFO] [timer.py:215:stop] epoch=0/micro_step=10/"
        "global_step=10, RunningAvgSamplesPerSec=220.69, CurrSamplesPerSec=222.88, "
        "MemAllocated=0.07GB, MaxMemAllocated=0.1GB",
        Mark(step=10, epoch=0, samples_per_s=222.88),
    ),
    "tqdm": (
        "Epoch 0:  50%|█████     | 25/50 [01:35<01:35,  3.80s/it, train_loss=2.30]",
        Mark(step=25, epoch=0, total_steps=50, loss=2.3),
    ),
    "step": (
        "Epoch [1/5], Step [100/600], Loss: 0.1234",
        Mark(step=100, epoch=1, total_steps=600, loss=0.1234),
    ),
}


def recognised(lines: Iterable[str]) -> tuple[LogFormat, ...]:
    recognition = Recognition()
    for line in lines:
        recognition.take(line)
    return recognition.fitting


def test_the_page_lists_the_formats_of_today() -> None:
    listed = re.findall("^- `([a-z-]+)`: ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_a_real_line_of_each_format_is_recognised_and_of_no_other(name: str) -> None:
    assert [one.name for one in recognised([EXAMPLES[name][0]])] == [name]


@pytest.mark.parametrize(
    ("name", "line", "mark"),
    [
        # DALI's example, and main.py before 2018.
        ("imagenet", "Epoch: [2][10/1307] Time 0.779 (5.211) Speed 328.6 (49.1) Loss nan (nan)",
         Mark(step=10, epoch=2, total_steps=1307, loss=math.nan)),
        ("timm", "2026-01-02 03:04:05 INFO Train: 3 [1250/1251 (100%)]  Loss: 6.9 (6.9)  "
         "LR: 1.0e-05", Mark(step=1250, epoch=3, total_steps=1251, loss=6.9)),
        ("torchvision", "Epoch: [0]  [  0/60]  eta: 0:02:17  lr: 0.000090  loss: 2.7890 (2.7890)  "
         "loss_classifier: 0.7 (0.7)  time: 2.2894  data: 0.4357  max mem: 2081",
         Mark(step=0, epoch=0, total_steps=60, loss=2.789)),
        ("megatron", " iteration      100/     500 | consumed samples:        51200 | elapsed time "
         "per iteration (ms): 271.6/280.1 | learning rate: 6.0E-06 | global batch size:   512 |",
         Mark(step=100, total_steps=500, samples_per_step=512)),
        ("megatron", "[default3]: [2025-11-28 18:48:17] iteration       50/    5000 | consumed "
         "samples:        51200 | elapsed time per iteration (ms): 61674.3 | throughput per GPU "
         "(TFLOP/s/GPU): 68.2", Mark(step=50, total_steps=5000)),
        ("tqdm", "100%|██████████| 50/50 [03:30<00:00,  3.80s/it]", Mark(step=50, total_steps=50)),
        ("tqdm", "Epoch 3/9: 10%|█ | 5/50 [00:01<?, ?it/s]", Mark(step=5, epoch=3, total_steps=50)),
        ("tqdm", "812it [00:41, 20.00it/s]", Mark(step=812)),
        ("step", "step 50 loss 0.1234", Mark(step=50, loss=0.1234)),
        ("step", "step 210: 54.1 ms/step", Mark(step=210)),
        # torchtitan
        ("step", "\x1b[31mstep:  1  \x1b[32mloss:  8.13170  \x1b[38;2;180;60;0mgrad_norm:  1.5003  "
         "\x1b[36mmemory:  1.93GiB(2.03%)  \x1b[34mtps: 12,345  \x1b[0m",
         Mark(step=1, loss=8.1317)),
        ("step", "iter 120: loss 3.1234, time 187.32ms, mfu 38.10%", Mark(step=120, loss=3.1234)),
        ("step", "Iter #5: 1489.1 img/sec per GPU", Mark(step=5)),  # Horovod
        ("step", "[rank0] Iteration 30/500, 812.5 img/s", Mark(step=30, total_steps=500)),
        ("step", "iter=7, lr=1e-3, train loss = nan", Mark(step=7, loss=math.nan)),
        ("step", "Epoch: [0][219/500] Loss 2.299 (17.5 it/s)",
         Mark(step=219, epoch=0, total_steps=500, loss=2.299)),
        # DCGAN's example.
        ("step", "[0/5][ 50/1583]\tLoss_D: 1.7\tLoss_G: 5.1\t0.2 s",
         Mark(step=50, epoch=0, total_steps=1583)),
        # Swin Transformer.
        ("step", "INFO Train: [0/300][10/1251]\teta 0:31:12 lr 0.1\ttime 0.37 (0.41)\tloss 6.9 "
         "(7.0)", Mark(step=10, epoch=0, total_steps=1251, loss=6.9)),
        ("step", "[219/500] loss 0.3 57ms/batch", Mark(step=219, total_steps=500, loss=0.3)),
        ("step", "Epoch [0/3] batch 95/400: loss=1.9",
         Mark(step=95, epoch=0, total_steps=400, loss=1.9)),
        ("step", "epoch 2 [9/50] 17.5 it/s", Mark(step=9, epoch=2, total_steps=50)),
        # NeMo leaves the rate out.
        ("tqdm", "Epoch 0: :   0%|          | 5/300000 [02:16<2281:40:05, v_num=0, loss=11.00]",
         Mark(step=5, epoch=0, total_steps=300000, loss=11.0)),
        # Of Hugging Face's Trainer.
        ("tqdm", "{'loss': '0.6931', 'grad_norm': '1.2', 'learning_rate': '5e-05', 'epoch': '0.1'}",
         Mark(loss=0.6931)),
        ("tqdm", "{'loss': nan, 'epoch': 0.1}", Mark(loss=math.nan)),
        ("gpuscale", '50%|█████     | 5/10 GPUSCALE {"epoch": 1, "step": 3, "loss": "nan"}',
         Mark(step=3, epoch=1, loss=math.nan)),
    ],
)  # fmt: skip
def test_variants_of_a_line_are_read(name: str, line: str, mark: Mark) -> None:
    # Of floats, a nan equals no other.
    assert repr(FORMATS[name].read(plain(line))) == repr(mark)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Epoch 3/5",
        f"Test: [  10/1307]{TAB}Time  0.779 ( 5.211){TAB}Loss 6.9e+00 (6.9e+00)",
        "Test: [  10/48]  Time: 0.312 (0.401)  Loss:  6.94 (6.95)  Acc@1: 0.0 (0.1)",
        "Test:   [ 10/196]  eta: 0:00:12  loss: 6.9 (7.0)  time: 0.3743  data: 0.0003  max mem: 1",
        "DLL 2020-09-15 14:29:14.427490 - Epoch: 0 train.loss : 6.93504  train.total_ips : 4294.9",
        "DLL 2020-09-15 14:29:14.427490 - Epoch: 0 Iteration: 9 Validation Iteration: 2 loss : 7",
        "DLL 2020-09-15 14:29:14.427490 - PARAMETER batch_size : 256",
        "[INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[0.001], mom=[(0.9, 0.9)]",
        "epoch=0/micro_step=10/global_step=10, vm %: 12.0, swap %: 0.0",
        "Img/sec per GPU: 1489.1 +-3.2",
        "total images/sec: 97.40",
        "Step\tImg/sec\ttotal_loss",
        "Loading checkpoint shards: 100%|██████████| 2/2 [00:00<00:00, 10.00it/s]",
        "Map:  50%|█████     | 500/1000 [00:00<00:00, 12345.00 examples/s]",
        "100%|██████████| 170M/170M [00:05<00:00, 28.3MB/s]",
        "date 2026-11-21 10/12 - 3s",
        # Epochs, or samples.
        "[3/90] train loss 0.3, 61 s",
        "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.285581",
        "loss: 2.303494  [   64/60000]",
        "Test: [0/300][10/1251] time 0.37 (0.41) loss 6.9 (7.0)",
        'GPUSCALE {"step": "ten"}',
    ],
)
def test_a_line_of_a_summary_or_other_text_is_no_mark(line: str) -> None:
    assert not recognised([line])


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("tqdm", "Validation DataLoader 0:  50%|█████     | 5/10 [00:00<00:00, 10.00it/s]"),
        ("tqdm", "{'eval_loss': 0.5, 'eval_runtime': 3.2, 'epoch': 1.0}"),
        ("megatron", " validation loss at iteration 100 | lm loss value: 3.0E+00 |"),
        ("step", "validate step: 10  loss: 10.7  memory: 30.99GiB(32%)  tps: 7,034"),
        ("step", "step 250: train loss 3.1, val loss 3.2"),
    ],
)
def test_a_line_of_validation_tells_so_and_no_step(name: str, line: str) -> None:
    assert not recognised([line])
    mark = known(FORMATS[name].read(line))
    assert (mark.step, mark.validated) == (None, True)


def test_bars_do_not_hide_the_lines_of_a_script() -> None:
    bar, timm = EXAMPLES["tqdm"][0], EXAMPLES["timm"][0]
    assert [one.name for one in recognised(["step 50 loss 0.1234", bar])] == ["tqdm"]
    assert [one.name for one in recognised([bar, timm])] == ["timm"]


def test_a_real_line_of_each_format_is_read_with_or_without_a_prefix_of_launchers() -> None:
    prefixes = ("", "[rank0]:", "[default0]:", "0: ", "2026-01-02 03:04:05,678 INFO: ", "wandb: ")
    for name, (line, mark) in EXAMPLES.items():
        for prefix in prefixes:
            assert FORMATS[name].read(prefix + line) == mark, prefix


def test_a_pattern_of_ones_own_tells_step_epoch_samples_and_loss() -> None:
    one = by_regex(r"it=(?P<step>[\d,]+) ep=(?P<epoch>\d+) n=(?P<samples>\d+) l=(?P<loss>\S+)")
    mark = Mark(step=1200, epoch=3, samples_per_step=64, loss=0.5)
    assert one.read("it=1,200 ep=3 n=64 l=0.5") == mark
    assert one.read("nothing") is None
    assert by_regex(r"it=(\d+)").read("it=12 l=0.5") == Mark(step=12)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"step (?P<step>\d+", "missing ), unterminated subpattern at position 5"),
        (r"step \d+", "has no group named step; for example --step-regex 'step (?P<step>"),
        (r"(\d+) of (\d+)", "has no group named step"),
        (r"(?P<loss>\d+)", "has no group named step"),
        (r"(?P<step>\d+) (?P<time>\d+)", "there is no group time; choose from step, epoch"),
    ],
)
def test_a_pattern_that_cannot_be_used_says_why(pattern: str, message: str) -> None:
    with pytest.raises(UsageError, match="--step-regex ") as error:
        by_regex(pattern)
    assert message in str(error.value)
    # As it was typed into the shell.
    _, printed, *_ = shlex.split(str(error.value).partition(": ")[0])
    assert printed == pattern


def test_long_lines_of_other_text_are_passed_over() -> None:
    # Where a pattern's time grows with the square of the line, this would not end.
    texts = ["a[:/", "1% ", "Train: 0 [", "[1][1/1]", "{'loss': ", "  memory: step: 1  loss: 1  "]
    for text in texts:
        line = plain(text * 500_000)
        for one in FORMATS.values():
            one.read(line)
