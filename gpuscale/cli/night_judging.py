"""The comparison of a night, of its last attempt and of its first."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuscale.cli.night_process import Stopping
from gpuscale.night import NightExit, NightFolder

_FORMATS = {"json": "json", "markdown": "md", "junit": "xml"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """How `gpuscale compare` ended."""

    exit_code: int | None
    """None where there was nothing to compare, or nothing to compare it with."""
    is_judged: bool
    """Whether it said anything: Python ends with 1, too, when it crashes."""

    @property
    def has_regressed(self) -> bool:
        """Whether it found a regression."""
        return self.exit_code == NightExit.REGRESSED and self.is_judged


def judge(folder: NightFolder, compare: Sequence[str], stopping: Stopping) -> Judgement:
    """Compare the results in a folder, and keep there what is said of them.

    Args:
        folder: Of a night, or of its first attempt.
        compare: The baseline and options of `gpuscale compare`; empty for no comparison.
        stopping: Runs programs.
    """
    results = folder.results
    if not compare or not results.exists() or not results.stat().st_size:
        return Judgement(exit_code=None, is_judged=False)
    formats: list[str] = []
    for name, ending in _FORMATS.items():
        formats += ["--format", f"{name}={folder.comparison(ending)}"]
    baseline, *options = compare
    command = ["gpuscale", "compare", baseline, str(results), *options, *formats]
    code, said = stopping.run(command, log=folder.comparison("txt"))
    return Judgement(exit_code=code, is_judged=bool(said.strip()))
