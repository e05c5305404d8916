"""What is known of a cluster: its nodes, its scheduler and what a night measures, as TOML files.

The shipped profiles lie beside this module; a site adds its own (docs/clusters.md).
"""

import os
import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from gpuscale.clusters.schedulers import SCHEDULERS
from gpuscale.clusters.schedulers.base import TIME_LIMIT
from gpuscale.errors import FileError, UsageError
from gpuscale.formats.text import visible

MOST_BYTES = 256 * 1024
SHELL_WORD_SIGNS = "@%_+=:,./~-"
"""What a word that goes into a shell script may have besides letters and digits."""
_ENDING = ".toml"
_TABLE = re.compile(r"\s*\[+\s*([^\]#]+?)\s*\]+\s*(#.*)?")
# What each kind of text must be like, and how messages say it.
_SHELL_WORD = rf"^[A-Za-z0-9{re.escape(SHELL_WORD_SIGNS)}]+\Z"
_UNPRINTABLE = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
_LINE = rf"^(?!\s)[^{_UNPRINTABLE}]{{1,200}}(?<!\s)\Z"
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*\Z"
_STRATEGY = r"^[a-z][a-z0-9_]*\Z"
_GPU_OPTION = rf"^([^{_UNPRINTABLE}]*\{{gpus\}}[^{_UNPRINTABLE}]*)?\Z"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}\Z"
_KINDS = {
    _SHELL_WORD: f"a word of letters, digits and {SHELL_WORD_SIGNS} (it goes into a shell script)",
    _LINE: "a line of at most 200 printable characters, without spaces around it",
    _VARIABLE: "the name of an environment variable",
    _STRATEGY: "a strategy such as ddp",
    TIME_LIMIT: "a time such as 01:00:00",
    _GPU_OPTION: "an option with {gpus} in it, such as --gres=gpu:{gpus}",
}
_TYPES = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}
_TYPES |= {"object": "a table", "array": "an array", "null": "nothing"}

ShellWord = Annotated[str, Meta(pattern=_SHELL_WORD)]
Line = Annotated[str, Meta(pattern=_LINE)]
Variable = Annotated[str, Meta(pattern=_VARIABLE)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]


class Node(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The GPU nodes, which are all alike."""

    gpus: Count | None = None
    """None where only the site knows."""
    cores: Count | None = None
    """As the scheduler counts them; a job gets them in proportion to its GPUs."""
    whole: bool = False
    """Whether a job takes whole nodes, however few GPUs it needs."""


class Recognition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the machine is told from others, from where jobs are submitted; any one is enough."""

    hosts: tuple[Line, ...] = ()
    """Patterns of host names, such as `jwlogin*`."""
    files: Mapping[str, str] = {}
    """Files and the text that each holds there, apart from spaces around it."""
    variables: Mapping[Variable, str] = {}
    """Environment variables and patterns of their values."""

    def fits(self, environment: Mapping[str, str], host: str) -> bool:
        """Whether a machine of that name and with those variables is the profile's."""
        return (
            any(fnmatchcase(host, pattern) for pattern in self.hosts)
            or any(_holds(Path(path), text) for path, text in self.files.items())
            or any(
                variable in environment and fnmatchcase(environment[variable], pattern)
                for variable, pattern in self.variables.items()
            )
        )


class JobSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the scheduler is told, and what the job's shell does first."""

    time_limit: Annotated[str, Meta(pattern=TIME_LIMIT)]
    """As `HH:MM:SS`."""
    gpu_option: Annotated[str, Meta(pattern=_GPU_OPTION)] | None = None
    """The scheduler's option for GPUs, with `{gpus}` for the number on each node."""
    partition: ShellWord | None = None
    """The partition or queue."""
    account: ShellWord | None = None
    """The account or project."""
    options: tuple[Line, ...] = ()
    """Further options of the scheduler, as they are."""
    modules: tuple[ShellWord, ...] = ()
    modules_remedy: Line | None = None
    """What to say where modules must be named and are not; None where `modules` will do."""
    variables: Mapping[Variable, str] = {}
    """Environment variables to set in the job."""
    unset: tuple[Variable, ...] = ()
    """Environment variables that the scheduler sets and that disturb."""


class Measured(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a night measures: arguments of pytest."""

    cases: tuple[ShellWord, ...] = ("bench_cases",)
    strategies: tuple[Annotated[str, Meta(pattern=_STRATEGY)], ...] = ("ddp",)
    gpus: tuple[Count, ...] = ()
    """Where `--gpus` does not say; empty where it must."""
    runs: Count = 3
    device: Literal["cuda", "cpu"] = "cuda"
    size: ShellWord = "full"
    run_seconds: Annotated[float, Meta(ge=1e-9, le=1e9)] | None = None
    """Time for the windows of a run; None for the default of the device."""
    options: tuple[Line, ...] = ()
    """Further arguments of pytest."""


class Judged(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a night is compared with; without a baseline it is only measured."""

    baseline: ShellWord | None = None
    cases: tuple[ShellWord, ...] = ()
    """`CASE/STRATEGY`; empty for all."""
    gpus: tuple[Count, ...] = ()
    """The numbers of GPUs that the baseline knows; empty for all that were measured."""


class ClusterProfile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster as its file describes it."""

    name: str
    """The file's name without its ending: part of the names of jobs and nights."""
    description: Line
    scheduler: str
    """A name of `SCHEDULERS`."""
    job: JobSettings
    node: Node = Node()
    recognise: Recognition = Recognition()
    measure: Measured = Measured()
    judge: Judged = Judged()

    def __post_init__(self) -> None:
        if self.scheduler not in SCHEDULERS:
            known = " or ".join(f"'{name}'" for name in SCHEDULERS)
            raise ValueError(f"scheduler: expected {known}, found text '{self.scheduler}'")
        scheduler = SCHEDULERS[self.scheduler]
        if self.job.gpu_option is None and scheduler.default_gpu_option is None:
            raise ValueError(
                f"job: missing field 'gpu_option': every {scheduler.title} site names its GPUs in "
                'its own way, such as gpu_option = "-l coproc_v100={gpus}"'
            )


def is_shell_word(text: str) -> bool:
    """Whether a shell takes the text as it is."""
    return re.match(_SHELL_WORD, text) is not None


def find_profile(wanted: str, environment: Mapping[str, str]) -> ClusterProfile:
    """The profile of that name, or in that file.

    Args:
        wanted: A name such as `arc4`, or a path that ends in `.toml` or holds a `/`.
        environment: Says where the user's own profiles are.

    Raises:
        UsageError: there is no such profile; the message names those there are.
        FileError: its file cannot be read or is wrong.
    """
    if wanted.endswith(_ENDING) or os.sep in wanted:
        return read_profile(Path(wanted).expanduser())
    own = _site_folder(environment) / f"{wanted}{_ENDING}"
    if own.is_file():
        return read_profile(own)
    shipped = resources.files("gpuscale.clusters") / f"{wanted}{_ENDING}"
    if wanted not in known_profiles(environment):
        raise UsageError(
            f"there is no cluster profile '{wanted}'; choose from "
            f"{', '.join(known_profiles(environment))}, or give a file such as ./mysite.toml "
            "(docs/clusters.md)"
        )
    text = shipped.read_text(encoding="utf-8")
    return parse_profile(text, name=wanted, shown_as=f"the shipped {wanted}{_ENDING}")


def known_profiles(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The names that `find_profile` knows, the user's own among them, in order."""
    shipped = (entry.name for entry in resources.files("gpuscale.clusters").iterdir())
    own = (path.name for path in _site_folder(environment).glob(f"*{_ENDING}"))
    names = {name for name in (*shipped, *own) if name.endswith(_ENDING)}
    return tuple(sorted(name.removesuffix(_ENDING) for name in names))


def recognised_profile(environment: Mapping[str, str], host: str) -> ClusterProfile:
    """The profile that recognises this machine, by its variables and its name.

    Raises:
        UsageError: none does, or more than one.
    """
    profiles = (find_profile(known, environment) for known in known_profiles(environment))
    found = [profile for profile in profiles if profile.recognise.fits(environment, host)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(profile.name for profile in found)
    problem = (
        f"{names} all recognise this machine" if found else "no profile recognises this machine"
    )
    raise UsageError(
        f"{problem} ({host}); name one of {', '.join(known_profiles(environment))}, "
        "or a file such as ./mysite.toml"
    )


def read_profile(path: Path) -> ClusterProfile:
    """The profile in a file.

    Raises:
        FileError: it cannot be read, or is wrong: with the line and the field.
    """
    shown = visible(str(path))
    try:
        # Bounded: somebody may name a results file, or a device.
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        problem = f"cannot be read ({reason}); name a TOML file, or a profile that is shipped"
        raise FileError(shown, problem) from None
    if len(content) > MOST_BYTES:
        raise FileError(shown, f"has more than {MOST_BYTES} bytes; is it a cluster profile?")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = "is not UTF-8 text; save it as UTF-8"
        raise FileError(shown, problem, place=f"byte {error.start + 1}") from None
    return parse_profile(text, name=path.stem, shown_as=shown)


def parse_profile(text: str, *, name: str, shown_as: str) -> ClusterProfile:
    """The profile that the text of a file stands for.

    Args:
        text: TOML.
        name: The profile's name.
        shown_as: The file, as messages name it.

    Raises:
        FileError: with the line and the field that are wrong.
    """
    if not re.match(_NAME, name):
        problem = (
            f"'{visible(name)}' cannot be part of a job's name; call the file by letters, digits, "
            "'.', '_' and '-' only, such as mysite.toml"
        )
        raise FileError(shown_as, problem)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileError(shown_as, f"is not TOML: {error}; correct it there") from None
    except RecursionError:
        raise FileError(shown_as, "is nested too deeply to be a cluster profile") from None
    if "name" in document:
        raise FileError(shown_as, "unknown field 'name'; the file's name is the profile's")
    try:
        return msgspec.convert({**document, "name": name}, ClusterProfile)
    except msgspec.ValidationError as error:
        place, problem, field = _in_words(str(error), document)
        line = _line_of(text, ".".join(filter(None, (place, field))))
        raise FileError(shown_as, problem, place=place or None, line=line) from None


def _in_words(message: str, document: Mapping[str, Any]) -> tuple[str, str, str | None]:
    """Where msgspec finds fault and with what; and the unknown field, if it is one."""
    found = re.fullmatch(r"(.*?)(?: - at (?:`key` in )?`\$\.?(.*)`)?", message, re.DOTALL)
    assert found is not None
    problem, place = found[1], found[2] or ""
    if own := re.match(r"([a-z_]+): ", problem):
        return ".".join(filter(None, (place, own[1]))), problem[own.end() :], None
    if missing := re.fullmatch(r"Object missing required field `(.*)`", problem):
        return place, f"missing field '{missing[1]}'", None
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", problem, re.DOTALL):
        tables = ClusterProfile.__annotations__
        known = tables.get(place, ClusterProfile).__annotations__
        close = get_close_matches(unknown[1], known, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        return place, f"unknown field '{visible(unknown[1])}'{hint}", unknown[1]
    for pattern, words in _KINDS.items():
        if problem.endswith(f"matching regex {pattern!r}"):
            return place, f"expected {words}{_found_at(document, place)}", None
    words = re.sub(r"`([^`]*)`", lambda quoted: _type_words(quoted[1]), problem)
    return place, words[0].lower() + words[1:].replace(", got ", ", found "), None


def _type_words(kinds: str) -> str:
    return " or ".join(_TYPES.get(kind, kind) for kind in kinds.split(" | ") if kind != "null")


def _found_at(document: Any, place: str) -> str:
    """What a document holds at a place such as `job.modules[1]`, for a message."""
    value = document
    for part in re.findall(r"[^.\[\]]+", place):
        try:
            value = value[int(part) if isinstance(value, list) else part]
        except (KeyError, ValueError, TypeError, IndexError):
            return ""
    if not isinstance(value, str):
        return ""
    return f", found text '{visible(value[:40])}'"


def _line_of(text: str, wanted: str) -> int | None:
    """The line of a TOML text that a place such as `job.modules[1]` stands in; None: unknown.

    A field that is missing stands where its table begins.
    """
    wanted = re.sub(r"\[[^\]]*\]", "", wanted)
    table, table_line = "", None
    for number, line in enumerate(text.splitlines(), start=1):
        header = _TABLE.fullmatch(line)
        if header:
            table = re.sub(r"[\s\"']", "", header[1])
            if table == wanted or table.startswith(f"{wanted}."):
                table_line = table_line or number
            continue
        assigned = re.match(r"\s*([^=#]+?)\s*=", line)
        if assigned:
            full = ".".join(filter(None, (table, re.sub(r"[\s\"']", "", assigned[1]))))
            if wanted and (full == wanted or wanted.startswith(f"{full}.")):
                return number
    return table_line


def _site_folder(environment: Mapping[str, str]) -> Path:
    """Where the user's own profiles are."""
    base = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    return Path(base) / "gpuscale" / "clusters"


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() == text.strip()
    except OSError:
        return False
