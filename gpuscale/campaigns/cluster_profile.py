"""Profiles of clusters: the nodes, the scheduler and the work of a nightly run (docs/clusters.md).

Annotations mark the fields that `gpuscale submit` can override or that become options of pytest.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta, field

from gpuscale.base.cpus import SITE, UNBOUND, is_map
from gpuscale.base.errors import DecodeError, FieldError, UsageError
from gpuscale.base.host import text_of
from gpuscale.base.printable import shown
from gpuscale.base.strategies import COMMAND
from gpuscale.measure.schedulers import SCHEDULERS
from gpuscale.measure.schedulers.scheduler import TIME_LIMIT
from gpuscale.records.json_text import from_builtins
from gpuscale.records.record import Gpus, Line, Name, PositiveCount, Record, Seconds

_SHELL_SIGNS = "@%_+=:,./~-"
_SHELL_WORD = rf"^[A-Za-z0-9{re.escape(_SHELL_SIGNS)}]+\Z"
_WORD = f"a word of letters, digits and {_SHELL_SIGNS} (it goes into a shell script)"
ShellWord = Annotated[str, Meta(pattern=_SHELL_WORD, description=_WORD)]
NodeNames = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9_.,\[\]-]+\Z", description="names of nodes such as nid[0102,0417]"),
]
Variable = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z", description="the name of an environment variable"),
]
TimeLimit = Annotated[str, Meta(pattern=TIME_LIMIT, description="a time such as 01:00:00")]


@dataclass(frozen=True, slots=True)
class JobOption:
    """Marks a profile field that an option of `gpuscale submit` can override."""

    name: str
    metavar: str
    words: str
    parse: Callable[[str], object] = str
    variable: str | None = None
    """Environment variable that overrides the field within the job; None if no variable does."""


@dataclass(frozen=True, slots=True)
class PytestOption:
    """Marks a profile field that is passed to pytest as an option."""

    name: str


class GpuNodes(Record, frozen=True, kw_only=True):
    """The GPU nodes of a cluster, all of the same kind."""

    gpus: Annotated[
        Gpus | None,
        JobOption(
            "--gpus-per-node", "N", "GPUs of each node, for profiles such as generic-slurm", int
        ),
    ] = None
    """Number of GPUs per node; None for a generic profile, which requires `--gpus-per-node`."""
    cores: PositiveCount | None = None
    """Cores per node as the scheduler counts them; jobs get cores in proportion to their GPUs."""
    whole: bool = False
    """True if the scheduler allocates only whole nodes, even to jobs that need fewer GPUs."""


class MachineMarks(Record, frozen=True, kw_only=True):
    """Marks that identify the machine from which jobs are submitted; one match is enough."""

    hosts: tuple[Line, ...] = ()
    """Patterns of host names, such as `jwlogin*`."""
    files: dict[Line, Line] = field(default_factory=dict)
    """Paths of files, each with the exact contents required, apart from surrounding whitespace."""
    variables: dict[Line, Line] = field(default_factory=dict)
    """Environment variables, each with a pattern for the value."""

    def fits(self, environment: Mapping[str, str], host: str) -> bool:
        """Return True if a host with this name and environment belongs to the profile."""
        known = {name: environment[name] for name in self.variables if name in environment}
        return (
            any(fnmatchcase(host, pattern) for pattern in self.hosts)
            or any(_holds(Path(path), text) for path, text in self.files.items())
            or any(fnmatchcase(value, self.variables[name]) for name, value in known.items())
        )


class JobSettings(Record, frozen=True, kw_only=True):
    """Settings for the scheduler and for the job's shell."""

    partition: Annotated[ShellWord | None, JobOption("--partition", "P", "partition or queue")] = (
        None
    )
    account: Annotated[ShellWord | None, JobOption("--account", "A", "account or project")] = None
    nodelist: Annotated[
        NodeNames | None, JobOption("--nodelist", "NODES", "run on these nodes, under Slurm")
    ] = None
    time_limit: Annotated[TimeLimit, JobOption("--time", "HH:MM:SS", "time limit of the job")]
    gpu_option: Line | None = None
    """Scheduler option that requests GPUs, with `{gpus}` in place of the number per node."""
    options: tuple[Name, ...] = ()
    """Further options of the scheduler, verbatim."""
    modules: Annotated[
        tuple[ShellWord, ...],
        JobOption("--modules", "'M M …'", "modules to load", str.split, "GPUSCALE_MODULES"),
    ] = ()
    module_purge: bool = False
    """True if all modules are unloaded before others are loaded."""
    modules_remedy: Name | None = None
    """Error message for users who name no modules; None if `modules` serves as the default."""
    variables: dict[Variable, Line] = field(default_factory=dict)
    unset: tuple[Variable, ...] = ()
    """Environment variables to unset because they would disturb the measurement."""
    prologue: tuple[Line, ...] = ()
    """Lines of bash to run before measuring, verbatim."""
    container: Line | None = None
    """Command prefix, verbatim, that runs gpuscale in a container; None without a container."""

    def __post_init__(self) -> None:
        if self.gpu_option and "{gpus}" not in self.gpu_option:
            wanted = "an option with {gpus} in it, such as --gres=gpu:{gpus}"
            _refuse("gpu_option", wanted, self.gpu_option)
        if self.container is not None and not self.container_program:
            wanted = "a command that begins with a program, such as apptainer exec --nv here.sif"
            _refuse("container", wanted, self.container)

    @property
    def container_program(self) -> str | None:
        """First word of the container command; None if that is not the name of a program."""
        try:
            words = shlex.split(self.container or "")
        except ValueError:
            return None
        is_program = words and re.match(_SHELL_WORD, words[0]) and "=" not in words[0]
        return words[0] if is_program else None


class Measured(Record, frozen=True, kw_only=True):
    """The work of a nightly run: cases, strategies, numbers of GPUs and other pytest options."""

    cases: Annotated[
        tuple[ShellWord, ...],
        JobOption("--cases", "'PATH …'", "measure these files and folders", str.split),
    ] = ("bench_cases",)
    strategies: Annotated[tuple[ShellWord, ...], PytestOption("--strategy")] = ("ddp", COMMAND)
    gpus: Annotated[tuple[Gpus, ...], PytestOption("--gpus")] = ()
    """Default of `gpuscale submit --gpus`; if empty, that option is required."""
    runs: Annotated[
        PositiveCount, JobOption("--runs", "R", "fresh starts of each", int, "GPUSCALE_RUNS")
    ] = 3
    device: Annotated[Literal["cuda", "rocm", "cpu"], PytestOption("--device")] = "cuda"
    cpu_bind: Annotated[ShellWord | None, PytestOption("--cpu-bind")] = None
    size: Annotated[ShellWord, PytestOption("--size")] = "full"
    run_seconds: Annotated[Seconds | None, PytestOption("--run-seconds")] = None
    """Seconds spent on the windows of each run; None for the device's default."""
    options: tuple[Name, ...] = ()
    """Further arguments for pytest."""

    def __post_init__(self) -> None:
        if self.cpu_bind not in (None, SITE, UNBOUND) and not is_map(self.cpu_bind):
            wanted = "site, none, or a map such as mask_cpu:0xfe,0xfe00"
            _refuse("cpu_bind", wanted, self.cpu_bind)


class Judged(Record, frozen=True, kw_only=True):
    """The baseline and the rows by which a nightly run is judged; without a baseline it is not."""

    baseline: Annotated[
        ShellWord | None,
        JobOption("--baseline", "FILE", "what to judge against", str, "GPUSCALE_BASELINE"),
    ] = None
    cases: tuple[ShellWord, ...] = ()
    """Rows to judge, each as `CASE/STRATEGY`; empty for all."""
    gpus: tuple[Gpus, ...] = ()
    """Numbers of GPUs to judge; empty for all that were measured."""
    on_verdict: Line | None = None
    """Shell command that is run at the end of each nightly run, whether it was judged or not."""


class ClusterProfile(Record, frozen=True, kw_only=True):
    """The profile of a cluster, read from a TOML file."""

    description: Name
    scheduler: str
    """Name of the scheduler, a key of `SCHEDULERS`."""
    job: JobSettings
    node: GpuNodes = GpuNodes()
    recognise: MachineMarks = MachineMarks()
    measure: Measured = Measured()
    judge: Judged = Judged()
    name: str = ""
    """File name without extension, used to name jobs and folders; not allowed in the file."""

    def __post_init__(self) -> None:
        if self.scheduler not in SCHEDULERS:
            known = " or ".join(f"'{name}'" for name in SCHEDULERS)
            _refuse("scheduler", known, self.scheduler)
        scheduler = SCHEDULERS[self.scheduler]
        if self.job.gpu_option is None and scheduler.default_gpu_option is None:
            raise FieldError(
                "job",
                f"missing field 'gpu_option': every {scheduler.title} site names its GPUs in "
                'its own way, such as gpu_option = "-l coproc_v100={gpus}"',
            )


def _refuse(place: str, wanted: str, value: str) -> None:
    raise FieldError(place, f"expected {wanted}, found {shown(value)}")


_Mark = TypeVar("_Mark", JobOption, PytestOption)


def _marked(kind: type[Record], mark: type[_Mark]) -> Iterator[tuple[str, _Mark]]:
    """Yield the name and the mark of each field of the record type that has this kind of mark."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        yield from ((name, each) for each in get_args(hint) if isinstance(each, mark))


JOB_OPTIONS = {
    option.name: ((table, name), option)
    for table, kind in (
        ("measure", Measured),
        ("judge", Judged),
        ("job", JobSettings),
        ("node", GpuNodes),
    )
    for name, option in _marked(kind, JobOption)
}
"""Options of `gpuscale submit` by name, each with the table and field that it overrides."""


def pytest_arguments(measured: Measured) -> Iterator[str]:
    """Yield the cases and options for pytest, quoted for a shell."""
    yield from measured.cases
    for name, option in _marked(Measured, PytestOption):
        value = getattr(measured, name)
        if value is not None:
            several = value if isinstance(value, tuple) else (value,)
            words = ",".join(f"{one:g}" if isinstance(one, float) else str(one) for one in several)
            yield f"{option.name} {words}"
    yield from (shlex.quote(option) for option in measured.options)


def with_options(profile: ClusterProfile, given: Mapping[str, object]) -> ClusterProfile:
    """Return the profile with job options applied; raise UsageError for an invalid value.

    `--cases` drops the profile's baseline, judged cases and judged numbers of GPUs; `--baseline`
    drops only the judged numbers of GPUs.
    """
    tables: dict[str, Any] = msgspec.to_builtins(profile)
    judge = tables.setdefault("judge", {})
    foreign = ["baseline", "cases", "gpus"] if "--cases" in given else ["gpus"]
    for name in foreign if given.keys() & {"--cases", "--baseline"} else ():
        judge.pop(name, None)
    places = {option: JOB_OPTIONS[option][0] for option in given if option in JOB_OPTIONS}
    for option, (table, name) in places.items():
        tables.setdefault(table, {})[name] = given[option]
    try:
        return from_builtins(ClusterProfile, tables)
    except DecodeError as error:
        wrong = [o for o, place in places.items() if error.place.startswith(".".join(place))]
        raise UsageError(f"{wrong[0]}: {error.problem}") from None


def _holds(path: Path, text: str) -> bool:
    return text_of(path) == text.strip()
