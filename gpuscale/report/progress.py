"""How far a run is, in a line."""

_BAR_CELLS = 20


def progress_text(label: str, stage: str, done: int, total: int) -> str:
    """A bar with its label: `mnist_cnn/ddp on 2 GPUs, run 1  ███████░░░░░  window 7/12`."""
    filled = _BAR_CELLS * done // total if total else 0
    bar = "█" * filled + "░" * (_BAR_CELLS - filled)
    return f"{label}  {bar}  {stage} {done}/{total}"
