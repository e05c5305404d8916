"""Cases that fail by their own code: one failed run says what all further ones would."""

from collections.abc import Sequence

from gpuscale.base.foreign_texts import MAYBE_NOT_OWN, MAYBE_TRANSIENT
from gpuscale.records import EntryKey, Run


def broken_by(key: EntryKey, runs: Sequence[Run]) -> Run | None:
    """The failed run by which one more of this row, or of its whole case, would fail; else None.

    The case raised an exception, or the lines of a command told too little, and nothing of it gave
    a number: of the case and strategy on any number of GPUs, or of that row. A file or connection
    that fails counts once it did so in two rounds. Memory that is too small and ranks that were
    killed say nothing of further runs.
    """
    of_case = [run for run in runs if run.key.case == key.case and run.key.strategy == key.strategy]
    of_row = [run for run in of_case if run.gpus == key.gpus]
    for alike in (of_case, of_row):
        broken = [run for run in alike if _is_its_own(run)]
        if not broken or any(run.is_valid for run in alike):
            continue
        if broken[0].index < broken[-1].index or not MAYBE_TRANSIENT.search(_told(broken[-1])):
            return broken[-1]
    return None


def _is_its_own(run: Run) -> bool:
    failure = run.failure
    if failure is None or failure.kind != "raised":
        return failure is not None and failure.kind == "unread"
    return MAYBE_NOT_OWN.search(_told(run)) is None


def _told(run: Run) -> str:
    assert run.failure is not None
    # Of a command only its last lines tell what it raised.
    is_command = run.configuration.command is not None and run.failure.kind == "raised"
    return run.failure.detail if is_command else run.failure.message
