"""Commands as cases: the user's own training script, timed by the lines that it prints."""

import math
import re
import shlex
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from string import Formatter
from typing import ClassVar, Literal

from gpuscale.base.errors import CaseError
from gpuscale.base.host import is_gpu
from gpuscale.base.strategies import COMMAND
from gpuscale.base.text import escaped, no_such, shown, suggestion
from gpuscale.records import Environment
from gpuscale.records.configuration import ScalingMode
from gpuscale.records.metrics import OpenMetric
from gpuscale.records.record import NAME_LIMIT
from gpuscale.records.request import Launch
from gpuscale.workload.cases import Case, validate_names
from gpuscale.workload.printed_figures import metrics_of
from gpuscale.workload.step_log_formats import FORMATS, by_regex

LAUNCHES = ("plain", "torchrun", "per-rank", "per-node", "once")
"""Ways to start a command; `plain` lets gpuscale choose one, and `torchrun` means `per-rank`."""
PLACEHOLDERS = (
    *("gpus", "nodes", "gpus_per_node", "node_rank", "batch", "global_batch"),
    *("master_addr", "master_port", "hosts", "hostfile"),
)
ON_EACH_NODE = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate")
"""Programs that start the ranks of one node only."""
_STARTERS = (*ON_EACH_NODE, "mpirun", "mpiexec", "srun", "deepspeed")
_RUNS_HERE = re.compile(r"(python|pypy)[\d.]*|torchrun|accelerate")
"""Programs that take a script whose path is relative to the working directory."""
_SCRIPT = re.compile(r"[^-{}\s][^{}\s]*\.py")
NO_BATCH = (
    "the command does not print how many samples a step has; give --batch N (on each GPU) or "
    "--samples-per-step N (over all)"
)


class CommandCase(Case):
    """The user's own training script, started unchanged and timed by the lines that it prints.

    Subclass this and set `command`; also set `batch` or `global_batch` unless the script prints the
    samples per step. gpuscale replaces `{gpus}` and other `PLACEHOLDERS`; `{{` is a literal brace.
    """

    strategies = (COMMAND,)
    command: ClassVar[str] = ""
    """Command line, split as by a shell; variables, pipes and the like need `sh -c`."""
    batch: ClassVar[int | None] = None
    """Samples per GPU and counted step; None if `global_batch` is set or the script prints it."""
    global_batch: ClassVar[int | None] = None
    """Samples over all GPUs in each counted step; None if they depend on the number of GPUs."""
    launch: ClassVar[Literal["plain", "torchrun", "per-rank", "per-node", "once"]] = "plain"
    log_format: ClassVar[str | None] = None
    """Format of the printed lines (see `gpuscale.workload.step_log_formats`); None to detect it."""
    step_regex: ClassVar[str | None] = None
    """Regular expression with the group `step`, used instead of a log format."""
    figure: ClassVar[str | None] = None
    """Regular expression whose named groups are metrics in the output, judged instead of the step
    time; or the name of a known benchmark, such as `nccl-tests`."""
    better: ClassVar[Mapping[str, Literal["more", "less"]]] = {}
    """The better direction (`more` or `less`) of each metric whose name does not imply it."""
    scaling: ClassVar[ScalingMode | None] = None
    """Whether the work per printed time is constant per GPU (`weak`) or in total (`strong`)."""

    @classmethod
    def metrics(cls) -> tuple[OpenMetric, ...]:
        """Return the metrics that the command prints; empty if gpuscale times its steps instead."""
        return () if cls.figure is None else metrics_of(cls.figure, cls.better, cls.scaling)

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """Return the words of the command line; placeholders are not replaced."""
        return tuple(shlex.split(cls.command))

    @classmethod
    def batch_per_gpu(cls, gpus: int, batch: int | None = None) -> int | None:
        """Return the number of samples per GPU per step; None if the script's output reports it.

        The argument `batch` replaces the case's `global_batch` or, if it has none, its `batch`.
        """
        own = cls.batch if cls.global_batch is None else cls.global_batch
        asked = own if batch is None else batch
        if asked != own and not cls.placeholders() & {"batch", "global_batch"}:
            raise CaseError(f"{cls.name()} takes no batch; write {{batch}} where its option has it")
        if cls.global_batch is None or asked is None:
            return asked
        return cls.divided(asked, gpus)

    @classmethod
    def launch_of(cls, *, across_nodes: bool) -> Launch:
        """Return the start mode on one or several nodes; raise CaseError if ranks start twice."""
        launch: Launch = "per-rank" if across_nodes or cls.launch == "torchrun" else "once"
        if cls.launch != "plain" and cls.launch != "torchrun":
            launch = cls.launch
        starter = starter_of(cls.words())
        if starter is None or not across_nodes or launch == "once":
            return launch
        if starter in ON_EACH_NODE and cls.launch in ("plain", "per-node"):
            return "per-node"
        remedy = "per-node" if starter in ON_EACH_NODE else "once"
        raise CaseError(
            f"{cls.name()}: {starter} starts ranks, and --launch {launch} starts it once for each "
            f"{launch.removeprefix('per-')}; give the bare script, or --launch {remedy}"
        )

    @classmethod
    def placeholders(cls) -> set[str]:
        """Return the names of the placeholders in the command."""
        return fields_of(cls.words())


def validate_command(case: type[CommandCase]) -> None:
    """Raise a CaseError for a command that cannot be started or has contradictory settings."""
    validate_names(case, CommandCase)
    name = case.name()
    if name != name.strip() or not 0 < len(name) <= NAME_LIMIT:
        raise CaseError(
            f"the name of a case: expected 1 to {NAME_LIMIT} characters without spaces around "
            f"them, found {shown(name)}; give another --name"
        )
    for problem in _problems(case):
        raise CaseError(f"{escaped(name)}: {problem}")


def validate_scaling(
    case: type[CommandCase], numbers: Collection[int], environment: Environment
) -> None:
    """Raise a CaseError if the command would be the same for different numbers of GPUs.

    The command needs no `{gpus}` if gpuscale starts the ranks, or if the command starts a rank
    on each GPU in `CUDA_VISIBLE_DEVICES`.
    """
    across_nodes, on_gpu = bool(environment.nodes), is_gpu(environment.device)
    launch, starter = case.launch_of(across_nodes=across_nodes), starter_of(case.words())
    if launch == "per-rank":
        return
    is_per_node = across_nodes and launch == "per-node"
    takes_all = on_gpu and (is_per_node or not across_nodes)
    if starter in ("accelerate", "deepspeed"):
        takes_all &= re.search(r"--num[-_](processes|gpus)\b", case.command) is None
    elif starter is not None:
        takes_all &= re.search(r"--nproc.per.node[= ](gpu|auto)\b", case.command) is not None
    name = "gpus_per_node" if is_per_node else "gpus"
    # Without {nodes}, the processes on each node would take {gpus} for the number of GPUs there.
    knows_total = not is_per_node or "nodes" in case.placeholders()
    different = set[tuple[object, ...]]()
    for gpus in numbers:
        nodes = environment.nodes_for(gpus)
        here = math.ceil(gpus / nodes)
        sizes = {"gpus": gpus * knows_total, "nodes": nodes, "gpus_per_node": here}
        sizes |= {"hosts": nodes, "hostfile": gpus}
        words = filled(case.words(), {**dict.fromkeys(PLACEHOLDERS), **sizes})
        different.add((takes_all and here, *words))
    if len(different) < len(numbers):
        raise CaseError(
            f"{escaped(case.name())}: the command would do the same on different numbers of ranks; "
            f"write {{{name}}} where it takes that number, such as torchrun --nproc-per-node "
            f"{{{name}}}, or let --launch per-rank start a script once for each"
        )


def _problems(case: type[CommandCase]) -> Iterator[str]:
    if not isinstance(case.command, str) or not case.command.strip():
        yield f"command is {case.command!r}; it must be a text, such as 'python train.py'"
        return
    try:
        words = case.words()
    except ValueError as error:
        yield f"the command cannot be split into words ({error}); see its quotes: {case.command}"
        return
    yield from _problems_of_words(case, words)
    if case.launch not in LAUNCHES:
        yield f"launch is {case.launch!r}; it is one of {', '.join(LAUNCHES)}"
    if case.log_format is not None and case.step_regex is not None:
        yield "--log-format and --step-regex both say how lines are read; leave out one"
    if case.log_format is not None and case.log_format not in FORMATS:
        yield no_such(case.log_format, FORMATS, "log format")
    yield from _problems_of_figure(case)
    if case.step_regex is not None:
        by_regex(case.step_regex)
    counts = {"batch": case.batch, "global_batch (--samples-per-step)": case.global_batch}
    for what, number in counts.items():
        if number is not None and (not isinstance(number, int) or number < 1):
            yield f"{what} is {number!r}; it takes whole numbers of at least 1"
    if case.batch is not None and case.global_batch is not None:
        yield "batch and global_batch say the same in two ways; leave out one"


def _problems_of_figure(case: type[CommandCase]) -> Iterator[str]:
    if case.figure is None:
        if case.better or case.scaling is not None:
            yield "--better and --scaling are about figures; add --figure, or leave them out"
        return
    of_steps = (case.step_regex, case.log_format, case.batch, case.global_batch)
    if any(value is not None for value in of_steps):
        options = "--step-regex, --log-format, --batch and --samples-per-step"
        yield f"--figure times no steps; leave it out, or else {options}"
    case.metrics()


def _problems_of_words(case: type[CommandCase], words: Sequence[str]) -> Iterator[str]:
    used = set[str]()
    for word in words:
        try:
            used |= fields_of([word])
        except ValueError as error:
            yield f"'{word}': {error}; write {{{{ and }}}} for braces of the command's own"
    known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
    for name in sorted(used - set(PLACEHOLDERS)):
        yield f"there is no placeholder {{{name}}}; known are {known} ({{{{ is a plain brace)"
    if case.launch == "once" and "node_rank" in used:
        yield "{node_rank} has no value: --launch once starts the command on the first node only"
    if used & {"batch", "global_batch"} and case.batch is None and case.global_batch is None:
        yield "{batch} has no value; give the case a batch or a global_batch (--batch N)"
    if "{" not in words[0] and shutil.which(words[0]) is None:
        remedy = "correct its name, make it executable, or name its interpreter first"
        yield f"'{words[0]}' is no program on PATH and no executable file; {remedy}"
    runs_script = "-m" not in words or starter_of(words, ON_EACH_NODE) is not None
    if runs_script and _RUNS_HERE.fullmatch(Path(words[0]).name):
        script = next((Path(word) for word in words if _SCRIPT.fullmatch(word)), None)
        if script is not None and not script.exists():
            near = suggestion(script.name, [path.name for path in script.parent.glob("*.py")])
            yield f"there is no file {script}{near}"


def fields_of(words: Iterable[str]) -> set[str]:
    """Return the placeholders in the words; raise a ValueError for any other use of braces."""
    fields = (field[1:] for word in words for field in Formatter().parse(word))
    names = set[str]()
    for name, form, conversion in fields:
        if name is not None:
            if form or conversion or not name.isidentifier():
                raise ValueError(f"{{{name}}} is not a placeholder")
            names.add(name)
    return names


def starter_of(words: Iterable[str], starters: Collection[str] = _STARTERS) -> str | None:
    """Return the first launcher (such as `torchrun`) in words or shell code; None if absent."""
    for word in words:
        parts = [word]
        with suppress(ValueError):
            parts = shlex.split(word)
        for part in parts:
            if (name := Path(part).name) in starters:
                return name
    return None


def filled(words: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """Return the words with their placeholders replaced by values."""
    return [word.format_map(values) for word in words]
