"""Cluster profiles: nodes, job settings, and the measurements and baseline of nightly runs."""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from gpuscale.base.errors import DecodeError, FieldError, UsageError
from gpuscale.base.host import SITE, UNBOUND, is_map
from gpuscale.base.strategies import COMMAND
from gpuscale.base.text import no_such, shown, visible
from gpuscale.measure.schedulers import SCHEDULERS
from gpuscale.measure.schedulers.scheduler import TIME_LIMIT
from gpuscale.records import record
from gpuscale.store.files import read_with

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
_SHELL_SIGNS = "@%_+=:,./~-"
_SHELL_WORD = rf"^[A-Za-z0-9{re.escape(_SHELL_SIGNS)}]+\Z"
_WORD = f"a word of letters, digits and {_SHELL_SIGNS} (it goes into a shell script)"
ShellWord = Annotated[str, record.matching(_SHELL_WORD, _WORD)]
NodeNames = Annotated[
    str, record.matching(r"^[A-Za-z0-9_.,\[\]-]+\Z", "names of nodes such as nid[0102,0417]")
]
Variable = Annotated[
    str, record.matching(r"^[A-Za-z_][A-Za-z0-9_]*\Z", "the name of an environment variable")
]
TimeLimit = Annotated[str, record.matching(TIME_LIMIT, "a time such as 01:00:00")]


class GpuNodes(record.Record, frozen=True, kw_only=True):
    """Properties of a cluster's GPU nodes, which are all of the same kind."""

    gpus: record.Gpus | None = None
    """Number of GPUs per node; None for a generic profile, which requires `--gpus-per-node`."""
    cores: record.PositiveCount | None = None
    """Cores per node as the scheduler counts them; jobs get cores in proportion to their GPUs."""
    whole: bool = False
    """True if the scheduler allocates only whole nodes, even to jobs that need fewer GPUs."""


class JobSettings(record.Record, frozen=True, kw_only=True):
    """Settings of a cluster's jobs: scheduler options, and modules and variables for the shell."""

    partition: ShellWord | None = None
    account: ShellWord | None = None
    nodelist: NodeNames | None = None
    time_limit: TimeLimit
    gpu_option: record.Line | None = None
    """Scheduler option that requests GPUs, with `{gpus}` in place of the number per node."""
    options: tuple[record.Name, ...] = ()
    modules: tuple[ShellWord, ...] = ()
    variables: Mapping[Variable, record.Line] = {}
    unset: tuple[Variable, ...] = ()
    """Environment variables to unset because they would disturb the measurement."""
    prologue: tuple[record.Line, ...] = ()
    """Lines of bash to run before measuring, verbatim."""
    container: record.Line | None = None
    """Command prefix, verbatim, that runs gpuscale in a container; None without a container."""

    def __post_init__(self) -> None:
        if self.gpu_option and "{gpus}" not in self.gpu_option:
            wanted = "an option with {gpus} in it, such as --gres=gpu:{gpus}"
            raise FieldError("gpu_option", f"expected {wanted}, found {shown(self.gpu_option)}")


class Measured(record.Record, frozen=True, kw_only=True):
    """Measurements of a nightly run: cases, strategies, numbers of GPUs, other pytest options."""

    cases: tuple[ShellWord, ...] = ("bench_cases",)
    strategies: tuple[ShellWord, ...] = ("ddp", COMMAND)
    gpus: tuple[record.Gpus, ...] = ()
    """Numbers of GPUs to measure, unless `--gpus` is given; if empty, that option is required."""
    runs: record.PositiveCount = 3
    device: Literal["cuda", "rocm", "cpu"] = "cuda"
    cpu_bind: ShellWord | None = None
    size: ShellWord = "full"
    run_seconds: record.Seconds | None = None
    """Seconds that each run spends on measurement windows; None for the device's default."""
    options: tuple[record.Name, ...] = ()

    def __post_init__(self) -> None:
        if self.cpu_bind not in (None, SITE, UNBOUND) and not is_map(self.cpu_bind):
            wanted = "site, none, or a map such as mask_cpu:0xfe,0xfe00"
            raise FieldError("cpu_bind", f"expected {wanted}, found {shown(self.cpu_bind)}")


class Judged(record.Record, frozen=True, kw_only=True):
    """The baseline against which a nightly run is judged, and the rows to judge."""

    baseline: ShellWord | None = None
    cases: tuple[ShellWord, ...] = ()
    """Rows to judge, each as `CASE/STRATEGY`; empty for all."""
    gpus: tuple[record.Gpus, ...] = ()
    """Numbers of GPUs to judge; empty for all that were measured."""
    on_verdict: record.Line | None = None
    """Shell command that is run at the end of each nightly run, whether it was judged or not."""


class ClusterProfile(record.Record, frozen=True, kw_only=True):
    """A cluster's profile, read from TOML: scheduler, nodes, job settings, nightly measurements."""

    description: record.Name
    scheduler: str
    job: JobSettings
    node: GpuNodes = GpuNodes()
    measure: Measured = Measured()
    judge: Judged = Judged()
    name: str = ""
    """File name without extension, used to name jobs and folders; the file must not set it."""

    def __post_init__(self) -> None:
        if self.scheduler not in SCHEDULERS:
            known = " or ".join(f"'{name}'" for name in SCHEDULERS)
            raise FieldError("scheduler", f"expected {known}, found {shown(self.scheduler)}")
        if self.job.gpu_option is None and SCHEDULERS[self.scheduler].default_gpu_option is None:
            wanted = 'the option that asks for GPUs, such as "-l coproc_v100={gpus}"'
            raise FieldError("job", f"missing field 'gpu_option': {wanted}")


def find_profile(wanted: str | None) -> ClusterProfile:
    """Read a profile by name (`arc4`) or path (`./x.toml`); raise UsageError if unknown or None."""
    shipped = (Path(__file__).parent / "profiles").glob("*.toml")
    known = {path.stem: path for path in sorted(shipped)}
    if wanted is not None and (wanted.endswith(".toml") or os.sep in wanted):
        path = Path(wanted).expanduser()
    elif wanted is not None and wanted in known:
        path = known[wanted]
    else:
        problem = no_such(wanted or "", known, "cluster profile")
        raise UsageError(f"{problem}, or give a file such as ./mysite.toml (docs/clusters.md)")
    return read_with(path, lambda text: parse_profile(text, path.stem))


def parse_profile(text: str, name: str) -> ClusterProfile:
    """Parse the TOML text of the profile `name`; raise a DecodeError that locates any problem."""
    if not _FILE_NAME.fullmatch(name):
        problem = f"'{visible(name)}' cannot be part of a job's name"
        remedy = "name the file with letters, digits, '.', '_' and '-' only, such as mysite.toml"
        raise DecodeError("", f"{problem}; {remedy}")
    try:
        document = tomllib.loads(text)
        if "name" in document:
            raise DecodeError("name", "unknown field; a profile is named after its file")
        return record.from_builtins(ClusterProfile, {**document, "name": name})
    except tomllib.TOMLDecodeError as error:
        raise DecodeError("", f"is not TOML: {error}; correct it there") from None
    except RecursionError:
        raise DecodeError("", "is nested too deeply to be a cluster profile") from None
