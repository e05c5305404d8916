"""Find and parse cluster profiles, and recognise which profile describes this machine."""

import os
import re
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path

from gpuscale.base.errors import DecodeError, UsageError
from gpuscale.base.printable import visible
from gpuscale.campaigns.cluster_profile import ClusterProfile
from gpuscale.records.json_text import from_builtins
from gpuscale.store.files import read_with

_TABLE = re.compile(r"\s*\[+\s*([^\]#]+?)\s*\]+\s*(#.*)?")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")


def chosen_profile(wanted: str | None) -> ClusterProfile:
    """Return the profile that a user names, or else the one that recognises this machine."""
    if wanted is None:
        return recognised_profile(os.environ, socket.getfqdn())
    return find_profile(wanted, os.environ)


def find_profile(wanted: str, environment: Mapping[str, str]) -> ClusterProfile:
    """Return a profile by name, such as `arc4`, or by path (contains `/` or ends in `.toml`)."""
    if wanted.endswith(".toml") or os.sep in wanted:
        return read_profile(Path(wanted).expanduser())
    known = profile_files(environment)
    if wanted not in known:
        remedy = f"choose from {', '.join(known)}, or give a file such as ./mysite.toml"
        raise UsageError(f"there is no cluster profile '{wanted}'; {remedy} (docs/clusters.md)")
    return read_profile(known[wanted])


def profile_files(environment: Mapping[str, str]) -> dict[str, Path]:
    """Return profile files by name; a user's file replaces a shipped file of the same name."""
    base = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    folders = (Path(__file__).parent / "profiles", Path(base) / "gpuscale" / "clusters")
    found = {path.stem: path for folder in folders for path in folder.glob("*.toml")}
    return dict(sorted(found.items()))


def recognised_profile(environment: Mapping[str, str], host: str) -> ClusterProfile:
    """Return the profile that recognises this machine; raise UsageError if none or several do."""
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
    """Read a profile from a file; raise a FileError with the line and field of a mistake."""
    return read_with(path, lambda text: parse_profile(text, path.stem))


def parse_profile(text: str, name: str) -> ClusterProfile:
    """Parse a profile from TOML; raise a DecodeError with the line and field of a mistake."""
    if not _FILE_NAME.fullmatch(name):
        problem = f"'{visible(name)}' cannot be part of a job's name"
        remedy = "call the file by letters, digits, '.', '_' and '-' only, such as mysite.toml"
        raise DecodeError("", f"{problem}; {remedy}")
    try:
        document = tomllib.loads(text)
        if "name" in document:
            raise DecodeError("name", "unknown field; the file's own name is the profile's")
        return from_builtins(ClusterProfile, {**document, "name": name})
    except tomllib.TOMLDecodeError as error:
        raise DecodeError("", f"is not TOML: {error}; correct it there") from None
    except RecursionError:
        raise DecodeError("", "is nested too deeply to be a cluster profile") from None
    except DecodeError as error:
        line = _line_of(text, ".".join(filter(None, (error.place, error.key))))
        problem = error.problem.replace("an object", "a table").replace("a list", "an array")
        raise DecodeError(error.place, problem, line=line) from None


def _line_of(text: str, wanted: str) -> int | None:
    """Line of a key such as `job.modules[1]` in a TOML text, or else of the key's table."""
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
