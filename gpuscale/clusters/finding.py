"""Which profile is meant: a shipped one, one of the user's own, or a file."""

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path

from gpuscale.clusters.profile import ClusterProfile, Recognition
from gpuscale.clusters.reading import parse_profile, read_profile
from gpuscale.errors import UsageError

_ENDING = ".toml"


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
    own = site_folder(environment) / f"{wanted}{_ENDING}"
    if own.is_file():
        return read_profile(own)
    shipped = _shipped()
    if wanted not in shipped:
        raise UsageError(
            f"there is no cluster profile '{wanted}'; choose from "
            f"{', '.join(known_profiles(environment))}, or give a file such as ./mysite.toml "
            "(docs/clusters.md)"
        )
    return parse_profile(shipped[wanted], name=wanted, shown_as=f"the shipped {wanted}{_ENDING}")


def known_profiles(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The names that `find_profile` knows, the user's own among them, in order."""
    own = (path.stem for path in site_folder(environment).glob(f"*{_ENDING}"))
    return tuple(sorted({*_shipped(), *own}))


def recognised_profile(environment: Mapping[str, str], host: str) -> ClusterProfile:
    """The profile that recognises this machine.

    Args:
        environment: The variables of this process.
        host: This machine's name.

    Raises:
        UsageError: none does, or more than one.
    """
    profiles = (find_profile(known, environment) for known in known_profiles(environment))
    found = [profile for profile in profiles if recognises(profile.recognise, environment, host)]
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


def recognises(known: Recognition, environment: Mapping[str, str], host: str) -> bool:
    """Whether a machine of that name and with those variables is the profile's."""
    return (
        any(fnmatchcase(host, pattern) for pattern in known.hosts)
        or any(_holds(Path(path), text) for path, text in known.files.items())
        or any(
            variable in environment and fnmatchcase(environment[variable], pattern)
            for variable, pattern in known.variables.items()
        )
    )


def site_folder(environment: Mapping[str, str]) -> Path:
    """Where the user's own profiles are."""
    base = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    return Path(base) / "gpuscale" / "clusters"


def _shipped() -> dict[str, str]:
    folder = resources.files("gpuscale.clusters")
    return {
        entry.name.removesuffix(_ENDING): entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(_ENDING)
    }


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() == text.strip()
    except OSError:
        return False
