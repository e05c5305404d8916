"""How far a run is, in a few words."""

_BAR_CELLS = 20


def progress_text(stage: str, done: int, total: int) -> str:
    """A bar and what it counts: `██████████░░░░░░░░░░ window 5/10`."""
    filled = _BAR_CELLS * done // total if total else 0
    bar = "█" * filled + "░" * (_BAR_CELLS - filled)
    return f"{bar} {stage} {done}/{total}"
