"""What may go into a job script as it stands: words that no shell takes apart, and time limits."""

import re

SHELL_WORD_SIGNS = "@%_+=:,./~-"
"""What a shell word may have besides letters and digits."""
_SHELL_WORD = re.compile(rf"[A-Za-z0-9{re.escape(SHELL_WORD_SIGNS)}]+")
_TIME_LIMIT = re.compile(r"(\d{1,4}):([0-5]\d):([0-5]\d)")


def is_shell_word(text: str) -> bool:
    """Whether a shell takes the text as it is."""
    return _SHELL_WORD.fullmatch(text) is not None


def time_limit_s(text: str) -> int:
    """The seconds of a time limit, `HH:MM:SS`.

    Raises:
        ValueError: it is no such text, or no time at all.
    """
    found = _TIME_LIMIT.fullmatch(text)
    hours, minutes, seconds = map(int, found.groups()) if found else (0, 0, 0)
    if not (hours or minutes or seconds):
        raise ValueError(f"no time limit: {text}")
    return hours * 3600 + minutes * 60 + seconds
