"""Who gives a command, and when: what a baseline keeps of its changes."""

import getpass
from datetime import UTC, datetime

from gpuscale.printable import clean
from gpuscale.records.record import NAME_LIMIT


def login_name() -> str | None:
    """The user's login name; None where the system has none, as in some containers."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):
        return None
    return clean(name).strip()[:NAME_LIMIT] or None


def now_text() -> str:
    """This moment, to the second: ISO 8601 with offset."""
    return datetime.now(UTC).isoformat(timespec="seconds")
