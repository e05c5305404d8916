"""The record of a night in its folder: what `gpuscale night` wrote, read again."""

from pathlib import Path

FIRST_ATTEMPT, RECORD = "attempt-1", "night.txt"
"""Names in a night's folder; an attempt that was repeated has a folder of its own."""
_MOST_CHARACTERS = 1024 * 1024


def facts_of(folder: Path) -> dict[str, str]:
    """What has been recorded of a night or an attempt; empty where nothing was."""
    try:
        # Bounded: there is no end to a device that somebody put in its place.
        with (folder / RECORD).open(encoding="utf-8", errors="replace") as record:
            text = record.read(_MOST_CHARACTERS)
    except OSError:
        return {}
    return {name: value for name, _, value in (line.partition(": ") for line in text.splitlines())}
