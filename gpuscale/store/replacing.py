"""A file that appears whole under its name, and stays there after a power cut."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path


def replace_file(target: Path, content: bytes) -> None:
    """Writes a file whole or not at all; raises OSError.

    An earlier one is replaced, and who may read and write it stays as it was.
    """
    beside = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with suppress(FileNotFoundError):
            os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
        with open(descriptor, "wb") as file:  # noqa: PTH123  a descriptor
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        beside.replace(target)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable, where the file system can."""
    # Some network file systems refuse it, and a file that is written but perhaps not yet named
    # after a power cut is no reason to stop measuring.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
