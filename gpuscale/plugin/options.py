"""The options that gpuscale adds to pytest, one entry for each.

pytest's help, the checks, `MeasureOptions` and docs/options.md are made from the entries. Every
pytest run in the environment imports this file: what a check needs is imported when it is made.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuscale.base.errors import UsageError
from gpuscale.base.strategies import MICRO_BATCHES, SCHEDULE, STRATEGIES, Schedule
from gpuscale.measure.launch import ACROSS_NODES, LAUNCHERS

if TYPE_CHECKING:
    from gpuscale.records.configuration import DataKind, Precision

FEWEST_RUNS = 3
"""With two runs to begin with, 95% intervals cover the truth in fewer than 92% of sessions."""


def _whole_number(
    option: str, text: str, *, at_least: int = 1, at_most: float = math.inf, example: str = "1"
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
    raise UsageError(f"{option}: {problem}; for example {option} {example}")


def _whole_numbers(option: str, text: str, *, example: str) -> tuple[int, ...]:
    """Such as `1,2,4`, ascending."""
    read = partial(_whole_number, option, at_most=100_000, example=example)
    counts = sorted(map(read, text.split(",")))
    if len(set(counts)) != len(counts):
        raise UsageError(
            f"{option} {text}: a number is given twice; name each once, e.g. {example}"
        )
    return tuple(counts)


def _fewest_and_most_runs(option: str, text: str) -> tuple[int | None, int]:
    """Such as `3:8`; of a single number the fewest are None, as there is no choice."""
    first, colon, last = text.partition(":")
    if not colon:
        return None, _whole_number(option, text)
    read = partial(_whole_number, option, at_least=FEWEST_RUNS, example=f"{FEWEST_RUNS}:8")
    fewest, most = read(first), read(last)
    if most < fewest:
        raise UsageError(f"{option}: {text} has its maximum first; write {option} {most}:{fewest}")
    return fewest, most


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _seconds(option: str, text: str) -> float:
    if not 0 < (number := _number(text)) < math.inf:
        raise UsageError(f"{option}: '{text}' is not a number of seconds above 0; try {option} 60")
    return number


def _fraction(option: str, text: str) -> float:
    """A percentage such as `2.5%` as a share of 1."""
    number, sign, rest = text.strip().partition("%")
    found = _number(number) / 100 if sign and not rest else math.nan
    if not 0 < found < 1:
        raise UsageError(
            f"{option}: '{text}' is not a percentage above 0% and below 100%; try {option} 1%"
        )
    return found


def _one_of(option: str, text: str, known: tuple[str, ...]) -> str:
    if text not in known:
        raise UsageError(f"{option}: there is no '{text}'; choose from {', '.join(known)}")
    return text


def _known_strategies(option: str, text: str) -> tuple[str, ...]:
    """Such as `dp,ddp`, each once."""
    names = [_one_of(option, part.strip(), tuple(STRATEGIES)) for part in text.split(",")]
    return tuple(dict.fromkeys(names))


def _absolute_path(option: str, text: str) -> Path:
    # pytest may go elsewhere from here.
    return Path(text).expanduser().absolute()


def _new_file(option: str, text: str) -> Path:
    path = _absolute_path(option, text)
    if os.path.lexists(path):
        raise UsageError(
            f"{option}: {text} exists already; name a new file (results are never overwritten)"
        )
    if path.suffix != ".jsonl":
        problem = "does not end with .jsonl, by which a folder's results are found"
        raise UsageError(f"{option}: {text} {problem}; name it {path.stem}.jsonl")
    return path


class Option(NamedTuple):
    """An option, and the attribute of `MeasureOptions` that holds what was asked for."""

    flag: str
    metavar: str
    """The value's name in the help; a switch has none."""
    meaning: str
    read: Callable[[str, str], object] = lambda option, text: text
    """From the option and the text given with it to its value."""
    default: object = None
    """None is what depends on other things; a tuple is of what may be given several times."""
    otherwise: str = ""
    """The default in words, where the value does not say it."""
    see: str = ""
    """The page, in docs/options.md, that says more."""
    heading: str = ""
    """Of the part of docs/options.md that begins with it."""
    owner: str = ""
    """A plugin whose option of this name is used where it is installed."""
    in_training: bool = False
    """It changes how gpuscale itself trains, so that it means nothing to a command."""
    for_all_cases: bool = False
    """Jobs give it to all of their cases, so that a command among them goes without it."""

    @property
    def default_text(self) -> str:
        """The default as the help and docs/options.md have it."""
        shown = f"`{self.default}`" if isinstance(self.default, str) else f"{self.default}"
        return self.otherwise or (shown if self.metavar else "off")

    def __get__(self, options: "MeasureOptions", _: type) -> object:
        return options.values[self.flag]

    def settings(self) -> dict[str, Any]:
        """The arguments for argparse."""
        text = f"{self.meaning} (default: {self.default_text})".replace("`", "").replace("%", "%%")
        if not self.metavar:
            return {"action": "store_true", "help": text}
        action = "append" if isinstance(self.default, tuple) else "store"
        return {"action": action, "metavar": self.metavar, "help": text}

    def value(self, given: Mapping[str, object]) -> object:
        """The value that was asked for."""
        value = given.get(self.flag.removeprefix("--").replace("-", "_"))
        # pytest-timeout has 0 for no timeout, which here would be no defence.
        if value is None or (not value and not isinstance(value, str)):
            return self.default if self.metavar else False
        if isinstance(value, list):
            return tuple(self.read(self.flag, text) for text in value)
        return self.read(self.flag, str(value)) if self.metavar else True


def option(usage: str, meaning: str, **settings: Any) -> Any:
    """An `Option` of such as `--run-seconds S`, for an attribute with the type of its value."""
    flag, _, metavar = usage.partition(" ")
    return Option(flag, metavar, meaning, **settings)


class MeasureOptions:
    """The options of one invocation; None is what depends on the device found."""

    __slots__ = ("values",)

    gpus: tuple[int, ...] = option(
        "--gpus N,N,…",
        "the numbers of GPUs, such as `1,2,4`; of CPU ranks, where there is no GPU. An item that "
        "needs more than there are is skipped",
        read=partial(_whole_numbers, example="1,2,4"),
        otherwise="nothing is measured",
        heading="what is measured",
    )
    strategies: tuple[str, ...] | None = option(
        "--strategy S,S,…",
        f"only these strategies: {', '.join(f'`{name}`' for name in STRATEGIES)}",
        read=_known_strategies,
        otherwise="the case's",
        see="strategies.md",
    )
    device: str = option(
        "--device D",
        "`auto`, `cuda` or `cpu`; `cuda` ends where there is no GPU, and does not measure the CPU",
        read=partial(_one_of, known=("auto", "cuda", "cpu")),
        default="auto",
        otherwise="`auto`: CUDA where there is a GPU",
    )
    launcher: str = option(
        "--launcher L",
        "`local` (this node), or "
        f"{' or '.join(f'`{name}`' for name in ACROSS_NODES)}: all nodes of the job",
        read=partial(_one_of, known=LAUNCHERS),
        default="local",
        see="nodes.md",
    )
    size: str | None = option(
        "--size NAME",
        "`full`, `smoke` or a size of your case",
        otherwise="`full` on GPUs, `smoke` on CPU ranks",
        heading="how it is trained",
        in_training=True,
        for_all_cases=True,
    )
    batches: tuple[int, ...] | None = option(
        "--batch N,N,…",
        "samples in the batch of each GPU (under strong scaling: of all GPUs together), each "
        "measured as an entry of its own; `gpuscale batch` finds the largest that fits",
        read=partial(_whole_numbers, example="32,64,128"),
        otherwise="that of the size",
        see="measuring.md#throughput-by-batch",
    )
    precision: "Precision" = option(
        "--precision P",
        "`fp32`, `tf32`, `bf16`, or `fp16` with a loss scaler",
        read=partial(_one_of, known=("fp32", "tf32", "bf16", "fp16")),
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
        "add up the gradients of K batches of the case's size in each step, and synchronise them "
        "once",
        read=_whole_number,
        default=1,
        see="strategies.md#accumulated-gradients",
        in_training=True,
    )
    micro_batches: int | None = option(
        "--micro-batches K",
        "with `pipeline`: micro-batches of each GPU's share of a batch, so that n GPUs have n × K "
        "in a step",
        read=_whole_number,
        otherwise=f"{MICRO_BATCHES}",
        see="strategies.md#pipelines",
        in_training=True,
    )
    schedule: "Schedule | None" = option(
        "--schedule NAME",
        "with `pipeline`: the order of its micro-batches, `gpipe` (all forward, then all backward) "
        "or `1f1b` (one forward, one backward, which keeps fewer activations)",
        read=partial(_one_of, known=("gpipe", "1f1b")),
        otherwise=f"`{SCHEDULE}`",
        in_training=True,
    )
    data: "DataKind" = option(
        "--data SOURCE",
        "`synthetic`: batches that are made once, so that the GPUs and their links are measured; "
        "`loader`: synthetic samples through the case's transforms and loader processes",
        read=partial(_one_of, known=("synthetic", "loader")),
        default="synthetic",
        in_training=True,
    )
    data_root: Path | None = option(
        "--data-root DIR",
        "train on the real data below this folder, through transforms and loader processes",
        read=_absolute_path,
        otherwise="synthetic data",
        in_training=True,
        for_all_cases=True,
    )
    download: bool = option(
        "--download", "let torchvision download them into `--data-root`", in_training=True
    )
    data_workers: int | None = option(
        "--data-workers N",
        "loader processes of each rank, the same for every number of GPUs, with `--data loader` "
        "or `--data-root`; 0: the rank loads by itself",
        read=partial(_whole_number, at_least=0),
        otherwise="0 on CPU ranks; on GPUs one less than the node has cores for each of its GPUs, "
        "at least 1 and at most 8",
        in_training=True,
    )
    threads_per_rank: int = option(
        "--threads-per-rank N",
        "CPU threads of each rank",
        read=_whole_number,
        default=1,
        in_training=True,
    )
    oversubscribe: bool = option(
        "--oversubscribe",
        "allow more CPU ranks than cores, and ranks that share a GPU (over gloo; such runs are "
        "never compared); such items are skipped otherwise",
    )
    runs: tuple[int | None, int] | None = option(
        "--runs R",
        "fresh starts of each case and strategy on each number of GPUs. `MIN:MAX` (`MIN` at least "
        "3) stops earlier: when `--target-ci` is met, or when `--baseline` is decided",
        read=_fewest_and_most_runs,
        otherwise="3; with `--baseline` `3:8`",
        heading="how long",
    )
    target_ci: float | None = option(
        "--target-ci P%",
        "how narrow the intervals are to be, half their width relative to the value; needs "
        "`--runs MIN:MAX`",
        read=_fraction,
        otherwise="1% with `--runs MIN:MAX`",
    )
    run_seconds: float | None = option(
        "--run-seconds S",
        "time budget for the windows of one run, start and warm-up not counted; 10 to 30 windows",
        read=_seconds,
        otherwise="20 on GPUs, 4 on CPU ranks",
        see="measuring.md#warm-up-and-steadiness",
    )
    timeout_s: float = option(
        "--timeout S",
        "end a run that takes longer, with the stack of every rank; where pytest-timeout is "
        "installed, the option is its own and means the same here",
        read=_seconds,
        default=600.0,
        otherwise="600",
        owner="pytest_timeout",
    )
    results: Path | None = option(
        "--results FILE",
        "a new results file, `.jsonl`",
        read=_new_file,
        otherwise="a new one in `.gpuscale/results`",
        heading="what becomes of it",
    )
    resume: Path | None = option(
        "--resume FILE",
        "measure only what this results file lacks, and append it",
        read=_absolute_path,
        otherwise="a new file",
    )
    baseline: Path | None = option(
        "--baseline FILE",
        "judge while measuring, and end with the verdict's exit code where pytest has none of its "
        "own",
        read=_absolute_path,
        otherwise="only measured",
        see="comparison.md#exit-codes",
    )
    injections: tuple[str, ...] = option(
        "--inject SPEC",
        "make a fault on purpose: `data=5ms`, `slow-rank=1:1.2`, `compute=1.1`, `hang=1@50`, "
        "`crash=0@20`; may be given several times",
        read=lambda option, text: text.strip(),
        default=(),
        otherwise="none",
        in_training=True,
    )

    def __init__(self, given: Mapping[str, object]) -> None:
        """Takes texts under the options' names with underscores."""
        self.values = {entry.flag: entry.value(given) for entry in OPTIONS}

    @property
    def bounds_of_runs(self) -> tuple[int | None, int]:
        """The fewest runs of each entry, None where all are made, and the most."""
        return self.runs or ((None, 3) if self.baseline is None else (FEWEST_RUNS, 8))


OPTIONS = tuple(entry for entry in vars(MeasureOptions).values() if isinstance(entry, Option))


def parse_options(given: Mapping[str, object]) -> MeasureOptions:
    """The options that were given, once they are known to make sense together."""
    from gpuscale.workload.injections import parse_injections

    options = MeasureOptions(given)
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
