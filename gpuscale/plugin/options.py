"""What was asked for on the command line, checked before anything starts."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, get_args

from gpuscale.compare.sequential import SequentialPlan
from gpuscale.errors import UsageError
from gpuscale.injections import parse_injections
from gpuscale.plugin.stopping import DEFAULT_TARGET, FEWEST_RUNS, StoppingRule
from gpuscale.records.configuration import Precision, ScalingMode

STRATEGIES = ("dp", "ddp")
SCALING_MODES: tuple[ScalingMode, ...] = get_args(ScalingMode)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
DEVICES = ("auto", "cuda", "cpu")
LAUNCHERS = ("local", "slurm", "mpirun")
DEFAULT_TIMEOUT_S = 600.0
_LARGEST_NUMBER_OF_GPUS = 100_000

T = TypeVar("T", bound=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """The options of one invocation; None is what depends on the device found."""

    gpus: tuple[int, ...]
    runs: int
    """Of each item; the most of them where there is a stopping rule."""
    stopping: StoppingRule | None
    baseline: Path | None
    judging: SequentialPlan | None
    """How many runs `baseline` may ask for; given whenever it is."""
    strategies: tuple[str, ...]
    device: str
    size: str | None
    precision: Precision
    channels_last: bool
    compiled: bool
    data_root: Path | None
    download: bool
    data_workers: int | None
    threads_per_rank: int
    run_seconds: float | None
    timeout_s: float
    oversubscribe: bool
    results: Path | None
    resume: Path | None
    injections: tuple[str, ...]
    launcher: str


def parse_options(given: Mapping[str, object]) -> MeasureOptions:
    """The options by their names on pytest's command line.

    Raises:
        UsageError: a value means nothing; the message names the remedy.
    """
    data_root = _data_root(given)
    gpus = _gpus(_text(given, "gpus"))
    baseline = _optional_text(given, "baseline")
    target = _optional_text(given, "target_ci")
    if baseline is not None and target is not None:
        raise UsageError(
            "--baseline and --target-ci both decide when there are enough runs; leave out one"
        )
    fewest, most = _runs(_optional_text(given, "runs") or ("3" if baseline is None else "3:8"))
    return MeasureOptions(
        gpus=gpus,
        runs=most,
        stopping=None if baseline is not None else _stopping(fewest, most, target),
        baseline=None if baseline is None else Path(baseline).expanduser().absolute(),
        judging=None if baseline is None else _judging(fewest, most),
        strategies=_strategies(given.get("strategy")),
        device=_one_of("--device", _text(given, "device"), DEVICES),
        size=_optional_text(given, "size"),
        precision=_one_of("--precision", _text(given, "precision"), PRECISIONS),
        channels_last=bool(given.get("channels_last")),
        compiled=bool(given.get("compile")),
        data_root=data_root,
        download=bool(given.get("download")),
        data_workers=(
            None
            if given.get("data_workers") is None
            else _whole_number("--data-workers", _text(given, "data_workers"), at_least=0)
        ),
        threads_per_rank=_whole_number(
            "--threads-per-rank", _text(given, "threads_per_rank"), at_least=1
        ),
        run_seconds=(
            None
            if given.get("run_seconds") is None
            else _seconds("--run-seconds", _text(given, "run_seconds"))
        ),
        timeout_s=_timeout(given.get("timeout")),
        oversubscribe=bool(given.get("oversubscribe")),
        results=_results(given),
        resume=_resume(given),
        injections=_injections(given.get("inject"), gpus),
        launcher=_one_of("--launcher", _text(given, "launcher"), LAUNCHERS),
    )


def _runs(text: str) -> tuple[int | None, int]:
    """The fewest runs, None where there is no choice, and the most."""
    first, colon, last = text.partition(":")
    if not colon:
        return None, _whole_number("--runs", text, at_least=1)
    # The whole of it is what a user can copy.
    example = f"{FEWEST_RUNS}:8"
    minimum = _whole_number("--runs", first, at_least=FEWEST_RUNS, example=example)
    maximum = _whole_number("--runs", last, at_least=FEWEST_RUNS, example=example)
    if maximum < minimum:
        raise UsageError(f"--runs: {text} has its maximum first; write --runs {maximum}:{minimum}")
    return minimum, maximum


def _stopping(fewest: int | None, most: int, target: str | None) -> StoppingRule | None:
    """The rule by which there may be fewer runs than the most."""
    if fewest is None:
        if target is not None:
            raise UsageError(
                f"--target-ci {target} needs room to stop in; write --runs "
                f"{FEWEST_RUNS}:{max(8, most)}"
            )
        return None
    width = DEFAULT_TARGET if target is None else _percentage("--target-ci", target)
    return StoppingRule(minimum_runs=fewest, target=width)


def _judging(fewest: int | None, most: int) -> SequentialPlan:
    """How many runs judging may ask for: a loss is confirmed by runs made after it was seen."""
    if fewest is None or fewest == most:
        raise UsageError(
            f"--baseline needs room for runs that confirm a loss; write --runs {FEWEST_RUNS}:"
            f"{max(8, most)}, or leave --runs out"
        )
    return SequentialPlan(fewest_runs=fewest, most_runs=most)


def _percentage(option: str, text: str) -> float:
    number, sign, rest = text.strip().partition("%")
    try:
        fraction = float(number) / 100 if sign and not rest else math.nan
    except ValueError:
        fraction = math.nan
    if not 0 < fraction < 1:
        raise UsageError(
            f"{option}: '{text}' is not a percentage above 0% and below 100%; try {option} 1%"
        )
    return fraction


def _injections(value: object, gpus: tuple[int, ...]) -> tuple[str, ...]:
    texts = tuple(str(text).strip() for text in value) if isinstance(value, list | tuple) else ()
    for text, injection in zip(texts, parse_injections(texts), strict=True):
        if injection.rank is not None and injection.rank >= max(gpus):
            raise UsageError(
                f"--inject: '{text}' would never happen: on {max(gpus)} GPUs the ranks are "
                f"0 to {max(gpus) - 1}; choose one of them, or more GPUs"
            )
    return texts


def _gpus(text: str) -> tuple[int, ...]:
    counts = tuple(
        _whole_number("--gpus", part, at_least=1, at_most=_LARGEST_NUMBER_OF_GPUS)
        for part in text.split(",")
    )
    if len(set(counts)) != len(counts):
        raise UsageError(f"--gpus {text}: a number is given twice; name each once, e.g. 1,2,4")
    return tuple(sorted(counts))


def _whole_number(
    option: str,
    text: str,
    *,
    at_least: int,
    at_most: int | None = None,
    example: str | None = None,
) -> int:
    example = example or ("1,2,4" if option == "--gpus" else str(max(1, at_least)))
    try:
        number = int(text.strip(), 10)
    except ValueError:
        raise UsageError(
            f"{option}: '{text}' is not a whole number; for example {option} {example}"
        ) from None
    if number < at_least or (at_most is not None and number > at_most):
        limit = f"at least {at_least}" if number < at_least else f"at most {at_most}"
        raise UsageError(f"{option}: {number} is not {limit}; for example {option} {example}")
    return number


def _seconds(option: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"{option}: '{text}' is not a number of seconds above 0; try {option} 60")
    return seconds


def _timeout(value: object) -> float:
    # pytest-timeout's own default is 0 or None: no timeout, which here would be no defence.
    if value is None or value == 0:
        return DEFAULT_TIMEOUT_S
    return _seconds("--timeout", str(value))


def _strategies(value: object) -> tuple[str, ...]:
    if value is None:
        return STRATEGIES
    names = [_one_of("--strategy", part.strip(), STRATEGIES) for part in str(value).split(",")]
    return tuple(dict.fromkeys(names))


def _one_of(option: str, text: str, known: tuple[T, ...]) -> T:
    for name in known:
        if text == name:
            return name
    raise UsageError(f"{option}: there is no '{text}'; choose from {', '.join(known)}")


def _data_root(given: Mapping[str, object]) -> Path | None:
    text = _optional_text(given, "data_root")
    if text is None:
        if given.get("download"):
            raise UsageError("--download: there is nowhere to put the data; add --data-root DIR")
        return None
    root = Path(text).expanduser().absolute()
    if not root.is_dir() and not given.get("download"):
        raise UsageError(
            f"--data-root: {text} is not a folder; create it with the data, or add --download"
        )
    return root


def _results(given: Mapping[str, object]) -> Path | None:
    text = _optional_text(given, "results")
    if text is None:
        return None
    path = Path(text).expanduser().absolute()
    if os.path.lexists(path):
        raise UsageError(
            f"--results: {text} exists already; name a new file (results are never overwritten)"
        )
    return path


def _resume(given: Mapping[str, object]) -> Path | None:
    text = _optional_text(given, "resume")
    if text is None:
        return None
    if given.get("results") is not None:
        raise UsageError(
            "--resume appends to the file it names, so --results has no meaning; leave out one"
        )
    return Path(text).expanduser().absolute()


def _text(given: Mapping[str, object], name: str) -> str:
    return str(given[name])


def _optional_text(given: Mapping[str, object], name: str) -> str | None:
    value = given.get(name)
    return None if value is None else str(value)
