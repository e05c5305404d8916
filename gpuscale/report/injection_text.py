"""What is said of results in which faults were made on purpose: they never pass for real ones."""

from collections.abc import Iterable, Sequence

from gpuscale.records import Results


def injections_of(results: Iterable[Results]) -> tuple[str, ...]:
    """The faults that were made on purpose in any of the results, each once."""
    return tuple(dict.fromkeys(text for result in results for text in result.injections))


def injection_warning(injections: Sequence[str]) -> str:
    """The line above every table of such results: `INJECTED data=5ms: not a real result`."""
    return f"INJECTED {', '.join(injections)}: not a real result"


def injection_note(injections: Sequence[str]) -> str:
    """The note below a comparison of such results."""
    return (
        f"faults were made on purpose ({', '.join(injections)}): the verdicts say whether they "
        "are found, and nothing about the machine"
    )
