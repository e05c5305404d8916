"""Folders for a while, of which the next process removes those that a killed one left."""

import contextlib
import fcntl
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

_OWNER = "owner"


@contextlib.contextmanager
def scratch_folder(prefix: str, *, within: Path | None = None) -> Iterator[Path]:
    """A new folder for as long as the context lasts.

    Args:
        prefix: How its name begins. Folders of that prefix whose processes on this host have ended
            are removed.
        within: Where it lies; in the system's folder for such by default.
    """
    place = Path(tempfile.gettempdir()) if within is None else within
    # Where the file system of several hosts keeps locks on each by itself, those of another host
    # look free. No name of a host has an underscore.
    on_this_host = f"{prefix}{socket.gethostname()}_"
    for folder in place.glob(f"{on_this_host}*"):
        _remove_if_left(folder)
    with (
        tempfile.TemporaryDirectory(
            prefix=on_this_host, dir=place, ignore_cleanup_errors=True
        ) as name,
        contextlib.ExitStack() as held,
    ):
        # Some network file systems have no locks: there a folder is never taken for left.
        with contextlib.suppress(OSError):
            claim = Path(name) / f"new-{_OWNER}"
            fcntl.flock(held.enter_context(claim.open("wb")), fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Under its name only once it is locked, so that nobody finds it free.
            claim.rename(claim.with_name(_OWNER))
        yield Path(name)


def _remove_if_left(folder: Path) -> None:
    # The system gives the lock back when a process ends, however that comes about.
    with contextlib.suppress(OSError), (folder / _OWNER).open("rb+") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
