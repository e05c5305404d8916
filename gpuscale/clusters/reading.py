"""A profile out of the text of its TOML file, or the line and field that are wrong."""

import re
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path

from gpuscale.clusters.job_words import SHELL_WORD_SIGNS, is_shell_word, time_limit_s
from gpuscale.clusters.profile import (
    ClusterProfile,
    JobSettings,
    Judged,
    Measured,
    Node,
    Recognition,
    Scheduler,
)
from gpuscale.errors import DecodeError, FileError
from gpuscale.formats.checks import each, gpus, name, positive_count, seconds, within
from gpuscale.formats.decode import Decoder, Rules
from gpuscale.printable import shown, visible

MOST_BYTES = 256 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STRATEGY = re.compile(r"[a-z][a-z0-9_]*")
_TABLE = re.compile(r"\s*\[+\s*([^\]#]+?)\s*\]+\s*(#.*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A profile as it stands in its file: without the name, which is the file's own."""

    description: str
    scheduler: Scheduler
    job: JobSettings
    node: Node = field(default_factory=Node)
    recognise: Recognition = field(default_factory=Recognition)
    measure: Measured = field(default_factory=Measured)
    judge: Judged = field(default_factory=Judged)


def read_profile(path: Path) -> ClusterProfile:
    """The profile in a file.

    Raises:
        FileError: it cannot be read, or is wrong: with the line and the field.
    """
    try:
        # Bounded: somebody may name a results file, or a device.
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        problem = f"cannot be read ({reason}); name a TOML file, or a profile that is shipped"
        raise FileError(visible(str(path)), problem) from None
    if len(content) > MOST_BYTES:
        problem = f"has more than {MOST_BYTES} bytes; is it a cluster profile?"
        raise FileError(visible(str(path)), problem)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = "is not UTF-8 text; save it as UTF-8"
        raise FileError(visible(str(path)), problem, place=f"byte {error.start + 1}") from None
    return parse_profile(text, name=path.stem, shown_as=visible(str(path)))


def parse_profile(text: str, *, name: str, shown_as: str) -> ClusterProfile:
    """The profile that the text of a file stands for.

    Args:
        text: TOML.
        name: The profile's name.
        shown_as: The file, as messages name it.

    Raises:
        FileError: with the line and the field that are wrong.
    """
    if not _NAME.fullmatch(name):
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
    try:
        decoded = Decoder(_RULES).decode(document, _File)
    except DecodeError as error:
        line = line_of(text, error.place, error.key)
        problem = _in_words_of_toml(error.problem)
        raise FileError(shown_as, problem, place=error.place or None, line=line) from None
    return ClusterProfile(
        name=name, **{part.name: getattr(decoded, part.name) for part in fields(_File)}
    )


def line_of(text: str, place: str, key: str | None = None) -> int | None:
    """The line of a TOML text that a place such as `job.modules[1]` stands in; None: unknown.

    A field that is missing stands where its table begins.

    Args:
        text: TOML.
        place: As errors have it.
        key: A field of the table at that place, where the error is about it.
    """
    wanted = ".".join(filter(None, (re.sub(r"\[[^\]]*\]", "", place), key)))
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


def _in_words_of_toml(problem: str) -> str:
    return problem.replace("an object", "a table").replace("a list", "an array")


def _time_limit(value: str) -> None:
    try:
        time_limit_s(value)
    except ValueError:
        raise DecodeError("", f"expected a time such as 01:00:00, found {shown(value)}") from None


def _gpu_option(value: str) -> None:
    if value and "{gpus}" not in value:
        problem = "expected an option with {gpus} in it, such as --gres=gpu:{gpus}, found "
        raise DecodeError("", f"{problem}{shown(value)}")


def _shell_word(value: str) -> None:
    if not is_shell_word(value):
        problem = f"expected a word of letters, digits and {SHELL_WORD_SIGNS}"
        raise DecodeError("", f"{problem} (it goes into a shell script), found {shown(value)}")


def _strategy(value: str) -> None:
    if not _STRATEGY.fullmatch(value):
        raise DecodeError("", f"expected a strategy such as ddp, found {shown(value)}")


def _variables(value: dict[str, str]) -> None:
    for key in value:
        _variable(key)


def _variable(key: str) -> None:
    if not _VARIABLE.fullmatch(key):
        raise DecodeError("", f"expected the name of an environment variable, found {shown(key)}")


def _scheduler_needs(profile: _File) -> None:
    if profile.scheduler == "sge" and profile.job.gpu_option is None:
        problem = (
            "missing field 'gpu_option': every SGE site names its GPUs in its own way, "
            'such as gpu_option = "-l coproc_v100={gpus}"'
        )
        raise DecodeError("job", problem)


_RULES = Rules(
    fields={
        _File: {"description": name},
        Node: {"gpus": gpus, "cores": within(1, 100_000, "a number of cores")},
        JobSettings: {
            "time_limit": _time_limit,
            "gpu_option": _gpu_option,
            "partition": _shell_word,
            "account": _shell_word,
            "options": each(name),
            "modules": each(_shell_word),
            "modules_remedy": name,
            "variables": _variables,
            "unset": each(_variable),
        },
        Measured: {
            "cases": each(_shell_word),
            "strategies": each(_strategy),
            "gpus": each(gpus),
            "runs": positive_count,
            "size": _shell_word,
            "run_seconds": seconds,
            "options": each(name),
        },
        Judged: {"baseline": _shell_word, "cases": each(_shell_word), "gpus": each(gpus)},
    },
    records={_File: _scheduler_needs},
)
