"""The options that gpuscale adds to pytest, as one table.

The fields of `MeasureOptions` determine pytest's help, the checks and docs/options.md. Every pytest
run in the environment imports this file, so checks import what they need only when they run.
"""

import math
import os
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscale.base.cpus import SITE, UNBOUND, is_map
from gpuscale.base.devices import DEVICES
from gpuscale.base.errors import UsageError
from gpuscale.base.strategies import MICRO_BATCHES, SCHEDULE, STRATEGIES, Schedule
from gpuscale.measure.launch import ACROSS_NODES, LAUNCHERS

if TYPE_CHECKING:
    from gpuscale.records.configuration import DataKind, Precision

FEWEST_RUNS = 3
"""Minimum number of runs: with only two, 95% intervals would cover the true value in fewer than 92%
of sessions."""


def _whole_number(
    text: str, *, at_least: int = 1, at_most: float = math.inf, example: str = "1"
) -> int:
    try:
        number = int(text.strip(), 10)
    except ValueError:
        problem = f"'{text}' is not a whole number"
    else:
        if at_least <= number <= at_most:
            return number
        limit = f"at least {at_least}" if number < at_least else f"at most {at_most}"
        problem = f"{number} is not {limit}"
    raise ArgumentTypeError(f"{problem}; for example {example}")


def _whole_numbers(text: str, *, example: str) -> tuple[int, ...]:
    """Parse numbers such as `1,2,4`, and sort them."""
    numbers = [_whole_number(part, at_most=100_000, example=example) for part in text.split(",")]
    if len(set(numbers)) < len(numbers):
        raise ArgumentTypeError(f"{text} has a number twice; name each once, such as {example}")
    return tuple(sorted(numbers))


def _runs(text: str) -> tuple[int | None, int]:
    """Parse a minimum and maximum number of runs, such as `3:8`; a single number is the maximum."""
    first, colon, last = text.partition(":")
    if not colon:
        return None, _whole_number(text)
    read = partial(_whole_number, at_least=FEWEST_RUNS, example=f"{FEWEST_RUNS}:8")
    fewest, most = read(first), read(last)
    if most < fewest:
        raise ArgumentTypeError(f"{text} has its maximum first; write {most}:{fewest}")
    return fewest, most


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _seconds(text: str) -> float:
    if not 0 < (number := _number(text)) < math.inf:
        raise ArgumentTypeError(f"'{text}' is not a number of seconds above 0, such as 60")
    return number


def _fraction(text: str) -> float:
    """Parse a percentage such as `2.5%` into a fraction."""
    number, sign, rest = text.strip().partition("%")
    value = _number(number) / 100 if sign and not rest else math.nan
    if not 0 < value < 1:
        raise ArgumentTypeError(f"'{text}' is not a percentage above 0% and below 100%, such as 1%")
    return value


def _choice(text: str, *, known: tuple[str, ...]) -> str:
    if text not in known:
        raise ArgumentTypeError(f"there is no '{text}'; choose from {', '.join(known)}")
    return text


def _cpu_binding(text: str) -> str:
    return text if is_map(text) else _choice(text, known=(UNBOUND, SITE, "mask_cpu:…", "map_cpu:…"))


def _strategies(text: str) -> tuple[str, ...]:
    """Parse a list of strategies such as `dp,ddp`, and drop repeated names."""
    names = (_choice(part.strip(), known=tuple(STRATEGIES)) for part in text.split(","))
    return tuple(dict.fromkeys(names))


def _absolute_path(text: str) -> Path:
    # pytest may change its folder later.
    return Path(text).expanduser().absolute()


def _new_results_file(text: str) -> Path:
    path = _absolute_path(text)
    if os.path.lexists(path):
        raise ArgumentTypeError(
            f"{text} exists already; name a new file (results are never overwritten)"
        )
    if path.suffix != ".jsonl":
        problem = "does not end with .jsonl, by which a folder's results are found"
        raise ArgumentTypeError(f"{text} {problem}; name it {path.stem}.jsonl")
    return path


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option that gpuscale adds to pytest, as described in the help and docs/options.md."""

    flag: str
    metavar: str
    """Name of the value in the help; empty for a switch."""
    meaning: str
    type: Callable[[str], object] = str
    """Function that parses the value, or raises an `ArgumentTypeError`."""
    default: object = None
    """Default value; None if it depends on other options, a tuple if the option may be repeated."""
    otherwise: str = ""
    """Description of the default, needed if its value alone would be unclear."""
    see: str = ""
    """Page of docs/ with more information."""
    heading: str = ""
    """Heading of the section of docs/options.md that starts with this option."""
    owner: str = ""
    """Other pytest plugin with an option of this name; if installed, its option is used instead."""
    in_training: bool = False
    """True if the option changes how gpuscale trains a case, and so has no effect on commands."""
    for_all_cases: bool = False
    """True if cluster jobs set the option for all cases; commands ignore it instead of refusing it.
    """

    @property
    def dest(self) -> str:
        """Name of the attribute in which argparse stores the value."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def default_text(self) -> str:
        """Description of the default in the help and docs/options.md."""
        shown = f"`{self.default}`" if isinstance(self.default, str) else f"{self.default}"
        return self.otherwise or (shown if self.metavar else "off")

    def settings(self) -> dict[str, Any]:
        """Return the arguments for argparse; values are parsed only when a session starts."""
        text = f"{self.meaning} (default: {self.default_text})".replace("`", "").replace("%", "%%")
        if not self.metavar:
            return {"action": "store_true", "help": text}
        action = "append" if isinstance(self.default, tuple) else "store"
        return {"action": action, "metavar": self.metavar, "help": text}

    def parse(self, given: object) -> object:
        """Parse what argparse collected: a text, a list of texts, or True for a switch."""
        if isinstance(given, list):
            return tuple(map(self.parse, given))
        try:
            return self.type(str(given)) if self.metavar else True
        except ArgumentTypeError as error:
            raise UsageError(f"{self.flag}: {error}") from None


def option(usage: str, meaning: str, *, default: object = None, **settings: Any) -> Any:
    """Return a field of `MeasureOptions` for an option such as `--run-seconds S`."""
    flag, _, metavar = usage.partition(" ")
    default = default if metavar else False
    entry = Option(flag=flag, metavar=metavar, meaning=meaning, default=default, **settings)
    return field(default=default, metadata={"option": entry})


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """The options of a session; a value of None means that the default is chosen later."""

    gpus: tuple[int, ...] = option(
        "--gpus N,N,…",
        "numbers of GPUs, such as `1,2,4`, or of CPU ranks if there is no GPU; items that need "
        "more than there are get skipped",
        type=partial(_whole_numbers, example="1,2,4"),
        otherwise="nothing is measured",
        heading="what is measured",
    )
    strategies: tuple[str, ...] | None = option(
        "--strategy S,S,…",
        f"measure only these strategies: {', '.join(f'`{name}`' for name in STRATEGIES)}",
        type=_strategies,
        otherwise="the case's",
        see="measuring.md#strategies",
    )
    device: str = option(
        "--device D",
        "`auto`, `cuda` or `rocm` (both fail without a GPU), or `cpu`",
        type=partial(_choice, known=("auto", *DEVICES)),
        default="auto",
        otherwise="`auto`: GPUs if there are any",
    )
    launcher: str = option(
        "--launcher L",
        "`local` (ranks on this node), or "
        f"{' or '.join(f'`{name}`' for name in ACROSS_NODES)} (on all nodes of the job)",
        type=partial(_choice, known=LAUNCHERS),
        default="local",
        see="clusters.md#across-nodes",
    )
    fresh_tasks: bool = option(
        "--fresh-tasks",
        "across nodes: start each rank of each run as a task of its own, and no process that stays "
        "on the nodes between runs; for sites that forbid it",
        see="clusters.md#across-nodes",
        in_training=True,
    )
    cpu_bind: str = option(
        "--cpu-bind B",
        "the CPUs of ranks: the job's (`none`), as the `site` binds tasks, or a map, as in "
        "`mask_cpu:0xfe,0xfe00` or `map_cpu:0,8`",
        type=_cpu_binding,
        default=UNBOUND,
        see="clusters.md#across-nodes",
    )
    size: str | None = option(
        "--size NAME",
        "`full`, `smoke` or another size of the case",
        otherwise="`full` on GPUs, `smoke` on CPU ranks",
        heading="how it is trained",
        in_training=True,
        for_all_cases=True,
    )
    batches: tuple[int, ...] | None = option(
        "--batch N,N,…",
        "samples in the batch of each GPU (under strong scaling: of all GPUs together), each a "
        "separate entry; `gpuscale batch` finds the largest that fits",
        type=partial(_whole_numbers, example="32,64,128"),
        otherwise="that of the size",
        see="measuring.md#throughput-by-batch",
    )
    precision: "Precision" = option(
        "--precision P",
        "`fp32`, `tf32`, `bf16`, or `fp16` with a loss scaler",
        type=partial(_choice, known=("fp32", "tf32", "bf16", "fp16")),
        default="fp32",
        in_training=True,
    )
    channels_last: bool = option(
        "--channels-last", "images in the channels-last memory format", in_training=True
    )
    compiled: bool = option(
        "--compile",
        "train through `torch.compile`; `dp`, `pipeline` and `mp` cannot, and are skipped then",
        in_training=True,
    )
    accumulate: int = option(
        "--accumulate K",
        "accumulate the gradients of K batches in each step, and synchronise them once",
        type=_whole_number,
        default=1,
        see="measuring.md#accumulated-gradients",
        in_training=True,
    )
    micro_batches: int | None = option(
        "--micro-batches K",
        "with `pipeline`: micro-batches of each GPU's share of a batch, so that n GPUs have n × K "
        "in a step",
        type=_whole_number,
        otherwise=f"{MICRO_BATCHES}",
        see="measuring.md#pipelines",
        in_training=True,
    )
    schedule: "Schedule | None" = option(
        "--schedule NAME",
        "with `pipeline`: the order of its micro-batches, `gpipe` (all forward, then all backward) "
        "or `1f1b` (one forward, one backward, which keeps fewer activations)",
        type=partial(_choice, known=("gpipe", "1f1b")),
        otherwise=f"`{SCHEDULE}`",
        in_training=True,
    )
    data: "DataKind" = option(
        "--data SOURCE",
        "`synthetic`: batches that are made once, so that the GPUs and their links are measured; "
        "`loader`: synthetic samples through the case's transforms and loader processes",
        type=partial(_choice, known=("synthetic", "loader")),
        default="synthetic",
        in_training=True,
    )
    data_root: Path | None = option(
        "--data-root DIR",
        "train on the real data below this folder, through transforms and loader processes",
        type=_absolute_path,
        otherwise="synthetic data",
        in_training=True,
        for_all_cases=True,
    )
    download: bool = option(
        "--download", "let torchvision download the data into `--data-root`", in_training=True
    )
    data_workers: int | None = option(
        "--data-workers N",
        "loader processes of each rank, the same for every number of GPUs, with `--data loader` "
        "or `--data-root`; 0: the rank itself loads the data",
        type=partial(_whole_number, at_least=0),
        otherwise="0 on CPU ranks; on GPUs one less than the node has cores for each of its GPUs, "
        "at least 1 and at most 8",
        in_training=True,
    )
    threads_per_rank: int = option(
        "--threads-per-rank N",
        "CPU threads of each rank",
        type=_whole_number,
        default=1,
        in_training=True,
    )
    oversubscribe: bool = option(
        "--oversubscribe",
        "allow more CPU ranks than cores, and several ranks on one GPU (over gloo; such runs are "
        "never compared); otherwise such items are skipped",
    )
    runs: tuple[int | None, int] | None = option(
        "--runs R",
        "fresh starts of each case and strategy on each number of GPUs. `MIN:MAX` (`MIN` at least "
        "3) stops earlier: when `--target-ci` is met, or when `--baseline` is decided",
        type=_runs,
        otherwise="3; with `--baseline` `3:8`",
        heading="how long",
    )
    target_ci: float | None = option(
        "--target-ci P%",
        "stop when half the width of each interval is this part of its value; needs "
        "`--runs MIN:MAX`",
        type=_fraction,
        otherwise="1% with `--runs MIN:MAX`",
    )
    run_seconds: float | None = option(
        "--run-seconds S",
        "time budget for the 10 to 30 windows of one run, without start and warm-up",
        type=_seconds,
        otherwise="20 on GPUs, 4 on CPU ranks",
        see="measuring.md#warm-up-and-steadiness",
    )
    timeout_s: float = option(
        "--timeout S",
        "end a run that takes longer, and print the stack of every rank; if pytest-timeout is "
        "installed, the option is its own and means the same here",
        type=_seconds,
        default=600.0,
        otherwise="600",
        owner="pytest_timeout",
    )
    results: Path | None = option(
        "--results FILE",
        "write the results into this new file, `.jsonl`",
        type=_new_results_file,
        otherwise="a new one in `.gpuscale/results`",
        heading="what becomes of it",
    )
    resume: Path | None = option(
        "--resume FILE",
        "measure only what this results file lacks, and append it",
        type=_absolute_path,
        otherwise="a new file",
    )
    baseline: Path | None = option(
        "--baseline FILE",
        "judge while measuring, and exit with the verdict's code unless pytest has its own",
        type=_absolute_path,
        otherwise="only measured",
        see="reading.md#exit-codes",
    )
    injections: tuple[str, ...] = option(
        "--inject SPEC",
        "inject a fault: `data=5ms`, `slow-rank=1:1.2`, `compute=1.1`, `hang=1@50`, "
        "`crash=0@20`; may be given several times",
        type=str.strip,
        default=(),
        otherwise="none",
        in_training=True,
    )

    @property
    def bounds_of_runs(self) -> tuple[int | None, int]:
        """Minimum and maximum runs per table row; the minimum is None if all runs must be made."""
        return self.runs or ((None, 3) if self.baseline is None else (FEWEST_RUNS, 8))


OPTIONS: Mapping[str, Option] = {
    entry.name: entry.metadata["option"] for entry in fields(MeasureOptions)
}
"""All options, keyed by the names of the attributes of `MeasureOptions`."""


def parse_options(given: Mapping[str, object]) -> MeasureOptions:
    """Parse the values that argparse collected, and check that they are compatible."""
    from gpuscale.workload.injections import parse_injections

    # A timeout of 0, which disables that of pytest-timeout, means the default here.
    collected = {name: given.get(option.dest) for name, option in OPTIONS.items()}
    values: dict[str, Any] = {
        name: OPTIONS[name].parse(text)
        for name, text in collected.items()
        if isinstance(text, str) or text
    }
    options = MeasureOptions(**values)
    parse_injections(options.injections)
    for problem in _contradictions(options):
        raise UsageError(problem)
    return options


def _contradictions(options: MeasureOptions) -> Iterator[str]:
    root, baseline, target = options.data_root, options.baseline, options.target_ci
    if root is None and options.download:
        yield "--download: there is nowhere to put the data; add --data-root DIR"
    if root is not None and not options.download and not root.is_dir():
        yield f"--data-root: {root} is not a folder; create it with the data, or add --download"
    if root is not None and options.data != "synthetic":
        yield f"--data {options.data} and --data-root: data have one source; leave out one"
    if root is None and options.data == "synthetic" and options.data_workers is not None:
        yield "--data-workers: nothing is loaded; add --data loader, or --data-root DIR"
    if options.resume is not None and options.results is not None:
        yield "--resume appends to the file it names, so --results has no meaning; leave out one"
    if baseline is not None and target is not None:
        yield "--baseline and --target-ci both decide when there are enough runs; leave out one"
    if options.run_seconds is not None and options.run_seconds >= options.timeout_s:
        problem = f"no run ends within its --timeout of {options.timeout_s:g} s"
        yield f"--run-seconds: {problem}; give --timeout {2 * options.run_seconds:g}, or fewer"
    fewest, most = options.bounds_of_runs
    room = f"write --runs {FEWEST_RUNS}:{max(8, most)}"
    if target is not None and fewest is None:
        yield f"--target-ci {target * 100:g}% needs room to stop in; {room}"
    if baseline is not None and fewest in (None, most):
        yield f"--baseline needs room for runs that confirm a loss; {room}, or leave --runs out"
