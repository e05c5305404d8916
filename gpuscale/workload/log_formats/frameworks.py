"""Log formats of training frameworks that can each be read with a single pattern."""

from gpuscale.workload.log_formats.log_format import NUMBER, LogFormat, reader

FORMATS = (
    LogFormat(
        name="imagenet",
        project="pytorch/examples imagenet/main.py",
        example=(
            "Epoch: [0][  10/1307]\tTime  0.779 ( 5.211)\tData  0.000 ( 0.060)\t"
            "Loss 2.3915e+01 (1.5221e+01)\tAcc@1   0.00 (  5.68)\tAcc@5   1.95 (  9.94)"
        ),
        read=reader(
            r"Epoch: ?\[(?P<epoch>\d+)\]\[ *(?P<step>\d+)/(?P<total>\d+)\]\s+"
            rf"Time:? +(?P<figure>[\d.]+)(?:.*?\bLoss:?\s+(?P<loss>{NUMBER}))?",
            holds="Epoch:",
        ),
        unit="s/step",
        span="step",
        every_rank_prints=True,
    ),
    LogFormat(
        name="timm",
        project="timm train.py",
        example=(
            "Train: 0 [  50/1251 (  4%)]  Loss: 6.94 (6.95)  Time: 0.312s,  820.51/s  "
            "(0.401s,  638.40/s)  LR: 1.000e-05  Data: 0.010 (0.044)"
        ),
        read=reader(
            r"Train: (?P<epoch>\d+) \[ *(?P<step>\d+)/(?P<total>\d+) \([^)]*\)\]"
            rf"(?:.*?\bLoss: +(?P<loss>{NUMBER}))?"
            r"(?:.*?\bTime: [\d.]+s, +(?P<figure>[\d.]+)/s)?",
            holds="Train: ",
        ),
        unit="samples/s",
        span="step",
    ),
    LogFormat(
        name="torchvision",
        project="torchvision references (also DeiT, MAE, DINO)",
        example=(
            "Epoch: [0]  [  10/5005]  eta: 0:31:12  lr: 0.1  img/s: 1234.567  loss: 6.9 (7.0)  "
            "acc1: 0.0 (0.1)  acc5: 0.5 (0.6)  time: 0.3743  data: 0.0003  max mem: 10000"
        ),
        # img/s leaves the loader out, time does not.
        read=reader(
            r"Epoch: \[(?P<epoch>\d+)\]\s+\[ *(?P<step>\d+)/(?P<total>\d+)\]\s+eta:"
            rf"(?:.*?\bloss: +(?P<loss>{NUMBER}))?(?:.*?\btime: (?P<figure>[\d.]+))?",
            holds="Epoch: [",
        ),
        unit="s/step",
        span="interval",
    ),
    LogFormat(
        name="dllogger",
        project="NVIDIA DeepLearningExamples, DLLogger's text",
        example=(
            "DLL 2020-09-15 14:29:14.427490 - Epoch: 0 Iteration: 2  train.loss : 6.93504  "
            "train.total_ips : 4294.91 img/s"
        ),
        # A line of validation counts a third number, a summary only the epoch or nothing.
        read=reader(
            r"DLL [-\d]+ [:.\d]+ - \(?(?:(?:Training )?Epoch:? )?(?P<epoch>\d+),? +"
            r"(?:(?:Training )?Iteration:? )?(?P<step>\d+)\b(?!,| +Validation)"
            rf"(?:.*?\b(?:train\.|step_)?loss : (?P<loss>{NUMBER}))?"
            r"(?:.*?\btrain\.total_ips : (?P<figure>[\d.]+))?",
            holds="DLL ",
        ),
        unit="samples/s",
        span="step",
    ),
    LogFormat(
        name="megatron",
        project="Megatron-LM (also Megatron-DeepSpeed, Megatron Bridge)",
        example=(
            " [2026-04-27 00:00:01] iteration        1/       3 | consumed samples:            2 | "
            "elapsed time per iteration (ms): 4000.0 | learning rate: 1.000000E-04 | "
            "global batch size:     2 | lm loss: 3.000000E+00 | loss scale: 1.0 |"
        ),
        read=reader(
            r"\biteration +(?P<step>\d+)/ *(?P<total>\d+) \|"
            r".*?elapsed time per iteration \(ms\): *(?P<figure>[\d.]+)"
            r"(?:.*?\| *global batch size: *(?P<samples>\d+))?"
            rf"(?:.*?\| *(?:[a-z]+ )?loss: *(?P<loss>{NUMBER}))?",
            holds="elapsed time per iteration",
            validation="validation loss at iteration ",
            figure_scale=1e-3,
        ),
        unit="s/step",
        span="interval",
    ),
    LogFormat(
        name="torchtitan",
        project="torchtitan",
        example=(
            "[rank0]:[titan] 2025-06-04 08:51:58,557 - root - INFO - step: 10  loss: 10.7069  "
            "memory: 30.99GiB(32.62%)  tps: 7,034  tflops: 407.35  mfu: 41.19%"
        ),
        read=reader(
            rf"\bstep: *(?P<step>\d+)  loss: *(?P<loss>{NUMBER})  .*?memory: "
            r".*?\b[tw]ps: *(?P<figure>[\d,]+)",
            holds="  memory: ",
            validation="validate step: ",
        ),
        unit="tokens/s",
        span="interval",
        of_all_ranks=False,
        every_rank_prints=True,
    ),
    LogFormat(
        name="deepspeed",
        project="DeepSpeed",
        example=(
            "[2023-08-02 00:41:17,936] [INFO] [timer.py:215:stop] epoch=0/micro_step=10/"
            "global_step=10, RunningAvgSamplesPerSec=220.69, CurrSamplesPerSec=222.88, "
            "MemAllocated=0.07GB, MaxMemAllocated=0.1GB"
        ),
        read=reader(
            r"\bepoch=(?P<epoch>\d+)/micro_step=\d+/global_step=(?P<step>\d+), "
            r"RunningAvgSamplesPerSec=[^,]*, CurrSamplesPerSec=(?P<figure>[\d.]+)",
            holds="CurrSamplesPerSec=",
        ),
        unit="samples/s",
        span="step",
    ),
    LogFormat(
        name="horovod",
        project="Horovod's synthetic benchmarks",
        example="Iter #5: 1489.1 img/sec per GPU",
        read=reader(r"Iter #(?P<step>\d+): (?P<figure>[\d.]+) img/sec per", holds="Iter #"),
        counts="iterations",
        unit="samples/s",
        span="interval",
        of_all_ranks=False,
    ),
    LogFormat(
        name="tf-cnn-benchmarks",
        project="tf_cnn_benchmarks",
        example="100\timages/sec: 97.4 +/- 0.1 (jitter = 0.5)\t8.030",
        read=reader(
            r"\b(?P<step>\d+)\timages/sec: (?P<figure>[\d.]+) \+/- [^\t]*"
            rf"(?:\t(?P<loss>{NUMBER}))?",
            holds="\timages/sec: ",
        ),
        unit="samples/s",
        span="run",
        of_all_ranks=False,
    ),
    LogFormat(
        name="nanogpt",
        project="nanoGPT",
        example="iter 120: loss 3.1234, time 187.32ms, mfu 38.10%",
        read=reader(
            rf"\biter (?P<step>\d+): loss (?P<loss>{NUMBER}), time (?P<figure>[\d.]+)ms",
            holds="iter ",
            validation=": train loss ",
            figure_scale=1e-3,
        ),
        unit="s/step",
        span="step",
    ),
)
