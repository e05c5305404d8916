"""Whether enough runs gave a number: those that survived are no fair sample of all."""

from collections.abc import Iterable

from gpuscale.compare.matching import Entry

FEWEST_NUMBERS = 2
"""So many runs must give a number, and as many as did not, for a pass beside failures."""
_NO_WINDOWS = ("has no windows", "have no windows")
_WORDS = {
    "raised": ("raised an error", "raised an error"),
    "system": ("met a fault of the system", "met faults of the system"),
    "killed": ("was killed", "were killed"),
    "timeout": ("took too long", "took too long"),
    "launch": ("did not start", "did not start"),
    "invalid": ("was invalid", "were invalid"),
    "unsteady": ("was unsteady", "were unsteady"),
}


def too_few_numbers(entry: Entry) -> str | None:
    """Why the runs cannot carry a pass, such as `1 of 8 runs gave a number: 7 were killed`.

    None where they can, and where no run failed.
    """
    valid, failed = entry.point.valid_runs, entry.point.failed_runs
    if not failed or valid >= max(failed, FEWEST_NUMBERS):
        return None
    return f"{valid} of {valid + failed} runs gave a number: {', '.join(_losses(entry))}"


def _losses(entry: Entry) -> Iterable[str]:
    for kind, count in entry.failures.items():
        one, several = _WORDS.get(kind, _NO_WINDOWS)
        yield f"{count} {one if count == 1 else several}"
