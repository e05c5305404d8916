"""Packages of an interpreter: names, versions and origins, from the folders that it imports from.

Folders are read instead of asking `importlib.metadata`, which parses whole descriptions and takes
ten times as long, and which only an interpreter of this machine's file system could be asked for.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gpuscale.base.printable import clean
from gpuscale.records.software import normalised

_METADATA = {".dist-info": "METADATA", ".egg-info": "PKG-INFO"}
_VERSION = re.compile(r"^Version: *(\S+)", re.MULTILINE)
_HEAD_CHARACTERS = 4096
_SHORT_COMMIT = 12


def installed_packages(folders: Iterable[Path]) -> Mapping[str, str]:
    """Return the version of each package by its normalised name, with its origin if it has one.

    Several versions of a package are separated by commas, first that of the first folder. Folders
    that do not exist or cannot be read have no packages. gpuscale itself is left out.
    """
    found: dict[str, dict[str, None]] = {}
    for folder in dict.fromkeys(folders):
        try:
            entries = sorted(entry for entry in folder.iterdir() if entry.suffix in _METADATA)
        except OSError:
            continue
        for entry in entries:
            package, _, rest = entry.stem.partition("-")
            version = _version(entry, rest, _METADATA[entry.suffix])
            found.setdefault(normalised(clean(package)), {})[version] = None
    # Its version is recorded as such, and how it is imported depends on how a session is started.
    found.pop("gpuscale", None)
    return {name: clean(", ".join(found[name])) for name in sorted(found)}


def _version(metadata: Path, rest: str, file_name: str) -> str:
    """Return a version such as `2.11.0`, `0.1 (editable, folder site)` or `1.2 (no METADATA)`.

    `rest` is the part of the folder's name after the package: a version, or nothing.
    """
    # An .egg-info may be a file, and its name may contain the version of Python.
    version, _, _ = rest.partition("-py")
    notes = []
    try:
        file = metadata if metadata.is_file() else metadata / file_name
        file.stat()
        if not version:
            with file.open(encoding="utf-8", errors="replace") as text:
                found = _VERSION.search(text.read(_HEAD_CHARACTERS))
            version = found[1] if found else ""
    except OSError:
        notes.append(f"no {file_name}")
    notes += _origin(metadata / "direct_url.json")
    return f"{version or 'unknown'} ({', '.join(notes)})" if notes else version or "unknown"


def _origin(file: Path) -> list[str]:
    """Describe where a package came from if not from an index, without names and passwords.

    Of local paths only the last part is kept: the others differ between jobs of one setup.
    """
    try:
        told = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        url = urlsplit(told["url"])
        if url.scheme == "file":
            kind = "editable, folder" if told.get("dir_info", {}).get("editable") else "from"
            return [f"{kind} {Path(url.path).name}"]
        commit = told.get("vcs_info", {}).get("commit_id", "")[:_SHORT_COMMIT]
        host = url.netloc.rpartition("@")[2]
        return [f"{url.scheme}://{host}{url.path}{commit and '@'}{commit}"]
    except OSError:
        return []
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError):
        return [f"{file.name} cannot be read"]
