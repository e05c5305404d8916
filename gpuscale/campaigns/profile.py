"""Clusters as TOML files: the nodes, the scheduler and the work of a night.

The shipped profiles lie in `profiles`, beside this module; a site adds its own (docs/clusters.md).
"""

import os
import re
import shlex
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from gpuscale.base.errors import DecodeError, UsageError
from gpuscale.base.printable import shown, visible
from gpuscale.base.strategies import COMMAND
from gpuscale.measure.schedulers import SCHEDULERS
from gpuscale.measure.schedulers.scheduler import TIME_LIMIT
from gpuscale.records.as_json import converted
from gpuscale.records.record import Gpus, Line, Name, PositiveCount, Record, Seconds
from gpuscale.store.files import read_with

_SHELL_SIGNS = "@%_+=:,./~-"
_TABLE = re.compile(r"\s*\[+\s*([^\]#]+?)\s*\]+\s*(#.*)?")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
_SHELL_WORD = rf"^[A-Za-z0-9{re.escape(_SHELL_SIGNS)}]+\Z"
_WORD = f"a word of letters, digits and {_SHELL_SIGNS} (it goes into a shell script)"
ShellWord = Annotated[str, Meta(pattern=_SHELL_WORD, description=_WORD)]
Variable = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z", description="the name of an environment variable"),
]
TimeLimit = Annotated[str, Meta(pattern=TIME_LIMIT, description="a time such as 01:00:00")]


OPTIONS = {
    "--cases": ("measure", "cases"),
    "--runs": ("measure", "runs"),
    "--baseline": ("judge", "baseline"),
    "--partition": ("job", "partition"),
    "--account": ("job", "account"),
    "--time": ("job", "time_limit"),
    "--modules": ("job", "modules"),
    "--gpus-per-node": ("node", "gpus"),
}
"""The options of `gpuscale submit` that take the place of a field of the profile."""


def _refuse(place: str, wanted: str, value: str) -> None:
    raise ValueError(f"{place}: expected {wanted}, found {shown(value)}")


class Node(Record, frozen=True, kw_only=True):
    """The GPU nodes, which are all alike."""

    gpus: Gpus | None = None
    """None where only the site knows."""
    cores: PositiveCount | None = None
    """As the scheduler counts them; a job gets them in proportion to its GPUs."""
    whole: bool = False
    """True where a job takes whole nodes, however few GPUs it needs."""


class Recognition(Record, frozen=True, kw_only=True):
    """Marks of the machine from which jobs are submitted; any one is enough."""

    hosts: tuple[Line, ...] = ()
    """Patterns of host names, such as `jwlogin*`."""
    files: dict[Line, Line] = field(default_factory=dict)
    """Files and the text that each holds there, apart from spaces around it."""
    variables: dict[Line, Line] = field(default_factory=dict)
    """Environment variables and patterns of their values."""

    def fits(self, environment: Mapping[str, str], host: str) -> bool:
        """True where a machine of that name and with those variables is the profile's."""
        known = {name: environment[name] for name in self.variables if name in environment}
        return (
            any(fnmatchcase(host, pattern) for pattern in self.hosts)
            or any(_holds(Path(path), text) for path, text in self.files.items())
            or any(fnmatchcase(value, self.variables[name]) for name, value in known.items())
        )


class JobSettings(Record, frozen=True, kw_only=True):
    """Settings for the scheduler, and for the shell of the job."""

    time_limit: TimeLimit
    """As `HH:MM:SS`."""
    gpu_option: Line | None = None
    """The scheduler's option for GPUs, with `{gpus}` for the number on each node."""
    partition: ShellWord | None = None
    account: ShellWord | None = None
    options: tuple[Name, ...] = ()
    """Further options of the scheduler, as they are."""
    modules: tuple[ShellWord, ...] = ()
    module_purge: bool = False
    """True where all modules are unloaded first."""
    modules_remedy: Name | None = None
    """Said where modules must be named and are not; None where `modules` will do."""
    variables: dict[Variable, Line] = field(default_factory=dict)
    unset: tuple[Variable, ...] = ()
    """Environment variables that the scheduler sets and that disturb."""
    prologue: tuple[Line, ...] = ()
    """Lines of bash before anything is measured, as they are."""
    container: Line | None = None
    """The command, as it is, behind which gpuscale runs in a container."""

    def __post_init__(self) -> None:
        if self.gpu_option and "{gpus}" not in self.gpu_option:
            wanted = "an option with {gpus} in it, such as --gres=gpu:{gpus}"
            _refuse("gpu_option", wanted, self.gpu_option)
        if self.container is not None and not self.container_program:
            wanted = "a command that begins with a program, such as apptainer exec --nv here.sif"
            _refuse("container", wanted, self.container)

    @property
    def container_program(self) -> str | None:
        """The program of the container's command; None without one."""
        try:
            words = shlex.split(self.container or "")
        except ValueError:
            return None
        is_program = words and re.match(_SHELL_WORD, words[0]) and "=" not in words[0]
        return words[0] if is_program else None


class Measured(Record, frozen=True, kw_only=True):
    """The work of a night: arguments of pytest."""

    cases: tuple[ShellWord, ...] = ("bench_cases",)
    strategies: tuple[ShellWord, ...] = ("ddp", COMMAND)
    gpus: tuple[Gpus, ...] = ()
    """Where `--gpus` does not say; empty where it must."""
    runs: PositiveCount = 3
    device: Literal["cuda", "cpu"] = "cuda"
    size: ShellWord = "full"
    run_seconds: Seconds | None = None
    """Time for the windows of a run; None for the default of the device."""
    options: tuple[Name, ...] = ()
    """Further arguments of pytest."""


class Judged(Record, frozen=True, kw_only=True):
    """The reference of a night; without a baseline it is only measured."""

    baseline: ShellWord | None = None
    cases: tuple[ShellWord, ...] = ()
    """`CASE/STRATEGY`; empty for all."""
    gpus: tuple[Gpus, ...] = ()
    """The numbers of GPUs that the baseline knows; empty for all that were measured."""
    on_verdict: Line | None = None
    """A command for the shell that is told how each night ended, judged or not."""


class ClusterProfile(Record, frozen=True, kw_only=True):
    """A cluster as its file describes it."""

    description: Name
    scheduler: str
    """A name of `SCHEDULERS`."""
    job: JobSettings
    node: Node = Node()
    recognise: Recognition = Recognition()
    measure: Measured = Measured()
    judge: Judged = Judged()
    name: str = ""
    """The file's own without its ending, and not in it: part of the names of jobs and nights."""

    def __post_init__(self) -> None:
        if self.scheduler not in SCHEDULERS:
            known = " or ".join(f"'{name}'" for name in SCHEDULERS)
            _refuse("scheduler", known, self.scheduler)
        scheduler = SCHEDULERS[self.scheduler]
        if self.job.gpu_option is None and scheduler.default_gpu_option is None:
            raise ValueError(
                f"job: missing field 'gpu_option': every {scheduler.title} site names its GPUs in "
                'its own way, such as gpu_option = "-l coproc_v100={gpus}"'
            )


def with_options(profile: ClusterProfile, given: Mapping[str, object]) -> ClusterProfile:
    """The profile with the values of `OPTIONS` that are given; a UsageError for one that is wrong.

    It judges nothing of other cases than its own, and by another baseline all numbers of GPUs.
    """
    tables: dict[str, Any] = msgspec.to_builtins(profile)
    judge = tables.setdefault("judge", {})
    foreign = ["baseline", "cases", "gpus"] if "--cases" in given else ["gpus"]
    for name in foreign if given.keys() & {"--cases", "--baseline"} else ():
        judge.pop(name, None)
    for option, (table, name) in OPTIONS.items():
        if option in given:
            tables.setdefault(table, {})[name] = given[option]
    try:
        return converted(ClusterProfile, tables)
    except DecodeError as error:
        wrong = [o for o, place in OPTIONS.items() if error.place.startswith(".".join(place))]
        raise UsageError(f"{wrong[0]}: {error.problem}") from None


def find_profile(wanted: str, environment: Mapping[str, str]) -> ClusterProfile:
    """The profile of a name such as `arc4`, or in a path that ends in `.toml` or holds a `/`."""
    if wanted.endswith(".toml") or os.sep in wanted:
        return read_profile(Path(wanted).expanduser())
    known = profile_files(environment)
    if wanted not in known:
        remedy = f"choose from {', '.join(known)}, or give a file such as ./mysite.toml"
        raise UsageError(f"there is no cluster profile '{wanted}'; {remedy} (docs/clusters.md)")
    return read_profile(known[wanted])


def profile_files(environment: Mapping[str, str]) -> dict[str, Path]:
    """The profiles by name, in order; the user's own go before shipped ones of the same name."""
    base = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    folders = (Path(__file__).parent / "profiles", Path(base) / "gpuscale" / "clusters")
    found = {path.stem: path for folder in folders for path in folder.glob("*.toml")}
    return dict(sorted(found.items()))


def recognised_profile(environment: Mapping[str, str], host: str) -> ClusterProfile:
    """The only profile that recognises this machine, by its variables and its name."""
    known = profile_files(environment)
    profiles = map(read_profile, known.values())
    found = [profile for profile in profiles if profile.recognise.fits(environment, host)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(profile.name for profile in found)
    problem = f"{names} all recognise" if found else "no profile recognises"
    remedy = f"name one of {', '.join(known)}, or a file such as ./mysite.toml"
    raise UsageError(f"{problem} this machine ({host}); {remedy}")


def read_profile(path: Path) -> ClusterProfile:
    """The profile in a file; a `FileError` names the line and the field that are wrong."""
    return read_with(path, lambda text: parse_profile(text, path.stem))


def parse_profile(text: str, name: str) -> ClusterProfile:
    """The profile that the TOML of a file of that name stands for; else a `DecodeError`."""
    if not _FILE_NAME.fullmatch(name):
        problem = f"'{visible(name)}' cannot be part of a job's name"
        remedy = "call the file by letters, digits, '.', '_' and '-' only, such as mysite.toml"
        raise DecodeError("", f"{problem}; {remedy}")
    try:
        document = tomllib.loads(text)
        if "name" in document:
            raise DecodeError("name", "unknown field; the file's own name is the profile's")
        return converted(ClusterProfile, {**document, "name": name})
    except tomllib.TOMLDecodeError as error:
        raise DecodeError("", f"is not TOML: {error}; correct it there") from None
    except RecursionError:
        raise DecodeError("", "is nested too deeply to be a cluster profile") from None
    except DecodeError as error:
        line = _line_of(text, ".".join(filter(None, (error.place, error.key))))
        problem = error.problem.replace("an object", "a table").replace("a list", "an array")
        raise DecodeError(error.place, problem, line=line) from None


def _line_of(text: str, wanted: str) -> int | None:
    """The line of a TOML text that `job.modules[1]` stands in, or its table; None: unknown."""
    wanted = re.sub(r"\[[^\]]*\]", "", wanted)
    table, table_line = "", None
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.fullmatch(line):
            table = re.sub(r"[\s\"']", "", header[1])
            if table == wanted or table.startswith(f"{wanted}."):
                table_line = table_line or number
        elif assigned := re.match(r"\s*([^=#]+?)\s*=", line):
            full = ".".join(filter(None, (table, re.sub(r"[\s\"']", "", assigned[1]))))
            if wanted and (full == wanted or wanted.startswith(f"{full}.")):
                return number
    return table_line


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() == text.strip()
    except OSError:
        return False
