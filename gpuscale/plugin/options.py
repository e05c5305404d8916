"""The options that gpuscale adds to pytest; quick to import, since all pytest runs import them."""

import os
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscale.base.errors import UsageError
from gpuscale.base.host import DEVICES, SITE, UNBOUND, is_map
from gpuscale.base.strategies import MICRO_BATCHES, STRATEGIES
from gpuscale.base.text import parse_count
from gpuscale.measure.launch import ACROSS_NODES, LAUNCHERS
from gpuscale.plugin.option_types import (
    Option,
    absolute_path,
    one_of,
    option,
    parse_counts,
    parse_seconds,
)

if TYPE_CHECKING:
    from gpuscale.records.configuration import DataKind, Precision

FEWEST_RUNS = 3
"""Minimum number of runs: with two, 95% intervals would be right in under 92% of sessions."""


def _runs(text: str) -> tuple[int | None, int]:
    """Parse minimum and maximum runs such as `3:8`; for `8` alone, the minimum is None."""
    first, colon, last = text.partition(":")
    if not colon:
        return None, parse_count(text)
    fewest, most = parse_count(first, FEWEST_RUNS), parse_count(last, FEWEST_RUNS)
    if most < fewest:
        raise ArgumentTypeError(f"{text} has its maximum first; write {most}:{fewest}")
    return fewest, most


def _cpu_binding(text: str) -> str:
    return text if is_map(text) else one_of(UNBOUND, SITE, "mask_cpu:…", "map_cpu:…")(text)


def _strategies(text: str) -> tuple[str, ...]:
    """Parse a list of strategies such as `dp,ddp`, and drop duplicates."""
    return tuple(dict.fromkeys(one_of(*STRATEGIES)(part.strip()) for part in text.split(",")))


def _new_results_file(text: str) -> Path:
    path = absolute_path(text)
    if os.path.lexists(path):
        problem = f"{text} exists already"
        raise ArgumentTypeError(f"{problem}; name a new file (results are never overwritten)")
    if path.suffix != ".jsonl":
        problem = "does not end with .jsonl, by which a folder's results are found"
        raise ArgumentTypeError(f"{text} {problem}; name it {path.stem}.jsonl")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """The options of a session; a value of None means that the default is chosen later."""

    gpus: tuple[int, ...] = option(
        "--gpus N,N,…",
        "numbers of GPUs, such as 1,2,4, or of CPU ranks if there is no GPU",
        type=parse_counts,
        otherwise="nothing is measured",
    )
    strategies: tuple[str, ...] | None = option(
        "--strategy S,S,…",
        f"measure only these strategies: {', '.join(STRATEGIES)}",
        type=_strategies,
        otherwise="the case's",
    )
    device: str = option(
        "--device D",
        "auto (GPUs if there are any), cuda, rocm, or cpu",
        type=one_of("auto", *DEVICES),
        default="auto",
    )
    launcher: str = option(
        "--launcher L",
        f"local (this node), or {' or '.join(ACROSS_NODES)} (all nodes of the job)",
        type=one_of(*LAUNCHERS),
        default="local",
    )
    fresh_tasks: bool = option(
        "--fresh-tasks",
        "across nodes: start each rank of each run as a task of its own",
        in_training=True,
    )
    cpu_bind: str = option(
        "--cpu-bind B",
        "CPUs that ranks may use: all of the job's (none), as bound by the site, or a map",
        type=_cpu_binding,
        default=UNBOUND,
    )
    size: str | None = option(
        "--size NAME",
        "full, smoke or another size of the case",
        otherwise="full on GPUs, smoke on CPU ranks",
    )
    batches: tuple[int, ...] | None = option(
        "--batch N,N,…",
        "batch size on each GPU; each size gives rows of its own",
        type=parse_counts,
        otherwise="that of the size",
    )
    precision: "Precision" = option(
        "--precision P",
        "fp32, tf32, bf16, or fp16 with a loss scaler",
        type=one_of("fp32", "tf32", "bf16", "fp16"),
        default="fp32",
        in_training=True,
    )
    channels_last: bool = option(
        "--channels-last", "images in the channels-last memory format", in_training=True
    )
    compiled: bool = option("--compile", "train through torch.compile", in_training=True)
    accumulate: int = option(
        "--accumulate K",
        "accumulate the gradients of K batches in each step",
        type=parse_count,
        default=1,
        in_training=True,
    )
    micro_batches: int | None = option(
        "--micro-batches K",
        "with pipeline: micro-batches of each GPU's share of a batch",
        type=parse_count,
        otherwise=f"{MICRO_BATCHES}",
        in_training=True,
    )
    data: "DataKind" = option(
        "--data SOURCE",
        "synthetic (batches made once), or loader (through transforms and loader processes)",
        type=one_of("synthetic", "loader"),
        default="synthetic",
        in_training=True,
    )
    data_root: Path | None = option(
        "--data-root DIR",
        "train on the real data below this folder",
        type=absolute_path,
        otherwise="synthetic data",
    )
    download: bool = option(
        "--download", "let torchvision download the data into --data-root", in_training=True
    )
    data_workers: int | None = option(
        "--data-workers N",
        "loader processes of each rank; 0: the rank itself loads the data",
        type=partial(parse_count, at_least=0),
        otherwise="0 on CPU ranks, by the node's cores on GPUs",
        in_training=True,
    )
    threads_per_rank: int = option(
        "--threads-per-rank N",
        "CPU threads of each rank",
        type=parse_count,
        default=1,
        in_training=True,
    )
    oversubscribe: bool = option(
        "--oversubscribe", "allow more CPU ranks than cores, and several ranks on one GPU"
    )
    runs: tuple[int | None, int] | None = option(
        "--runs R",
        "runs (new processes) of each row; MIN:MAX ends once the verdict on --baseline is clear",
        type=_runs,
        otherwise="3; with --baseline 3:8",
    )
    run_seconds: float | None = option(
        "--run-seconds S",
        "time budget for the windows of one run, without start and warm-up",
        type=parse_seconds,
        otherwise="20 on GPUs, 4 on CPU ranks",
    )
    timeout_s: float = option(
        "--timeout S",
        "end a run that takes longer, and print the stack of every rank",
        type=parse_seconds,
        default=600,
        owner="pytest_timeout",
    )
    results: Path | None = option(
        "--results FILE",
        "write the results into this new file, .jsonl",
        type=_new_results_file,
        otherwise="a new one in .gpuscale/results",
    )
    resume: Path | None = option(
        "--resume FILE",
        "measure only the runs that this results file lacks, and append them",
        type=absolute_path,
        otherwise="a new file",
    )
    baseline: Path | None = option(
        "--baseline FILE",
        "judge against this baseline while measuring, and exit with the verdict's code",
        type=absolute_path,
        otherwise="only measured",
    )
    injections: tuple[str, ...] = option(
        "--inject SPEC",
        "inject a fault, such as data=5ms or slow-rank=1:1.2; may be given several times",
        type=str.strip,
        default=(),
        otherwise="none",
        in_training=True,
    )

    @property
    def bounds_of_runs(self) -> tuple[int | None, int]:
        """Minimum and maximum runs per row; the minimum is None if each row gets the maximum."""
        fewest, most = self.runs or (None, 3 if self.baseline is None else 8)
        return (FEWEST_RUNS if fewest is None and self.baseline is not None else fewest), most


OPTIONS: Mapping[str, Option] = {
    entry.name: entry.metadata["option"] for entry in fields(MeasureOptions)
}
"""All options, keyed by the names of the attributes of `MeasureOptions`."""


def parse_options(given: Mapping[str, object]) -> MeasureOptions:
    """Parse the values that argparse collected; raise UsageError if any are wrong or conflict."""
    from gpuscale.workload.injections import parse_injection

    values = dict[str, Any]()
    for name, entry in OPTIONS.items():
        value = given.get(entry.dest)
        # A timeout of 0 disables that of pytest-timeout; for gpuscale, it means the default.
        if isinstance(value, str) or value:
            values[name] = entry.parse(value)
    options = MeasureOptions(**values)
    for text in options.injections:
        parse_injection(text)
    for problem in _contradictions(options):
        raise UsageError(problem)
    return options


def _contradictions(options: MeasureOptions) -> Iterator[str]:
    root, baseline = options.data_root, options.baseline
    if root is None and options.download:
        yield "--download: there is nowhere to put the data; add --data-root DIR"
    if root is not None and not options.download and not root.is_dir():
        yield f"--data-root: {root} is not a folder; create it with the data, or add --download"
    if root is not None and options.data != "synthetic":
        yield f"--data {options.data} and --data-root name two sources of data; leave out one"
    if root is None and options.data == "synthetic" and options.data_workers is not None:
        yield "--data-workers: nothing is loaded; add --data loader, or --data-root DIR"
    if options.resume is not None and options.results is not None:
        yield "--resume and --results name two files to write to; leave out one"
    if options.run_seconds is not None and options.run_seconds >= options.timeout_s:
        problem = f"no run ends within its --timeout of {options.timeout_s:g} s"
        yield f"--run-seconds: {problem}; add --timeout {2 * options.run_seconds:g}, or give less"
    fewest, most = options.bounds_of_runs
    room = f"write --runs {FEWEST_RUNS}:{max(8, most)}"
    if baseline is None and fewest is not None:
        yield f"--runs {fewest}:{most} needs a --baseline to end early; add one, or write {most}"
    if baseline is not None and fewest is not None and fewest >= most:
        yield f"--baseline needs further runs to confirm a loss; {room}, or leave --runs out"
