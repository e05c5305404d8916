"""A site's own command at the end of a night: a mail, a message, a ticket."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired

ON_VERDICT = "GPUSCALE_ON_VERDICT"
"""The variable that holds the command, for a shell."""
PATIENCE_S = 60.0


def run_on_verdict(
    command: str, folder: Path, *, code: int, meaning: str, patience_s: float = PATIENCE_S
) -> str | None:
    """What went wrong with the command, such as `ended with 3`; None where nothing did.

    Its standard input is the comparison as JSON, empty where there is none. A command that takes
    longer than `patience_s` is killed with all that it has started.
    """
    environment = {
        **os.environ,
        "GPUSCALE_NIGHT_EXIT": str(code),
        "GPUSCALE_NIGHT_MEANING": meaning,
        "GPUSCALE_NIGHT_FOLDER": str(folder.absolute()),
    }
    document = folder / "comparison.json"
    try:
        with (document if document.is_file() else Path(os.devnull)).open("rb") as verdict:
            process = Popen(
                ["/bin/sh", "-c", command], stdin=verdict, env=environment, start_new_session=True
            )
    except (OSError, ValueError) as error:
        return f"could not be started ({error})"
    try:
        exit_code = process.wait(patience_s)
    except TimeoutExpired:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"did not end within {patience_s:g} s and was killed"
    return f"ended with {exit_code}" if exit_code else None
