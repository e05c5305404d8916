"""The files of a night, and what it says, also where a disk or a terminal takes nothing more."""

import shutil
import sys
from contextlib import suppress
from pathlib import Path

from gpuscale.errors import FileError, UsageError
from gpuscale.night import Fault, NightFolder
from gpuscale.night.retry import RETRY_OF
from gpuscale.records import Results
from gpuscale.store import read_results


def night_to_go_on_in(path: Path) -> NightFolder:
    """The folder of the night that this job takes another's place in.

    Raises:
        UsageError: there is no such folder.
    """
    if not path.is_dir():
        raise UsageError(f"{RETRY_OF}: {path} is not the folder of a night; unset it")
    return NightFolder(path=path)


def results_in(path: Path) -> Results | None:
    """What a file holds; None where it is not there or broken, which the comparison will say."""
    try:
        return read_results(path) if path.exists() else None
    except FileError:
        return None


def write_or_say(path: Path, text: str) -> None:
    """Write a file, or print what would be in it."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        say(f"{path} cannot be written ({error.strerror}); its text was:\n{text}")


def copy_or_say(source: Path, target: Path) -> None:
    """Copy a file, or print why not."""
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        say(f"{target} cannot be written ({error.strerror})")


def on_host(fault: Fault) -> str:
    """The fault's host, unless its text has it already."""
    return "" if fault.host is None or fault.host in fault.text else f" (on {fault.host})"


def say(text: str) -> None:
    """Print a line of the night's own, if anybody still listens."""
    with suppress(OSError):
        sys.stdout.write(f"gpuscale night: {text}\n")
        sys.stdout.flush()
