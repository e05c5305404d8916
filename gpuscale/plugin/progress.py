"""The line that moves while a run is under way, on terminals only."""

import threading
from types import TracebackType
from typing import TextIO

import pytest

from gpuscale.launch.local import LocalLauncher
from gpuscale.plugin.items import ItemPlan
from gpuscale.report.progress import progress_text

_REFRESH_S = 0.2
_ERASE_LINE = "\r\033[K"


class ProgressLine:
    """Draws how far a run is behind the item's id, and erases it when the run has ended."""

    def __init__(self, config: pytest.Config, plan: ItemPlan, launcher: LocalLauncher) -> None:
        reporter = config.pluginmanager.getplugin("terminalreporter")
        self._writer = None if reporter is None else reporter
        self._launcher = launcher
        self._label = f"{plan.key.label}, run {plan.run}"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "ProgressLine":
        if self._writer is not None and self._writer.isatty and self._writer.verbosity > 0:
            # Captured or not, pytest's own writer still leads to the terminal.
            stream: TextIO = self._writer._tw._file
            self._thread = threading.Thread(target=self._draw, args=(stream,), daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _draw(self, stream: TextIO) -> None:
        drawn = False
        while not self._stop.wait(_REFRESH_S):
            progress = self._launcher.progress()
            if progress is not None:
                stream.write(_ERASE_LINE + progress_text(self._label, *progress))
                stream.flush()
                drawn = True
        if drawn:
            stream.write(_ERASE_LINE)
            stream.flush()
