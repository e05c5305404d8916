"""Judging while it is measured: `--baseline FILE`."""

import shutil
from collections.abc import Collection, Iterator
from datetime import date
from pathlib import Path

from gpuscale.compare.sequential import SequentialPlan, Step, next_step
from gpuscale.diagnose import diagnose
from gpuscale.records import Baseline, Comparison, Configuration, EntryKey, Results
from gpuscale.report.colour import Palette
from gpuscale.report.comparison_text import comparison_text
from gpuscale.validity import with_validity


class BaselineJudge:
    """Says which items still need runs, and in the end the verdict of the session."""

    def __init__(
        self, path: Path, baseline: Baseline, plan: SequentialPlan, *, gpus: Collection[int]
    ) -> None:
        self.path = path
        self.baseline = baseline
        self.plan = plan
        self._gpus = gpus
        self._cases: frozenset[str] | None = None
        self._configurations: frozenset[Configuration] | None = None
        self._judged_runs: int | None = None
        self._step: Step | None = None

    def judge_only(self, cases: Collection[str], configurations: Collection[Configuration]) -> None:
        """Leave out what this session does not measure.

        Args:
            cases: Each as `mnist_cnn/ddp`.
            configurations: In which they are measured, as far as they can be.
        """
        self._cases = frozenset(cases)
        self._configurations = frozenset(configurations)

    def reason_to_leave_out(self, key: EntryKey, run: int, results: Results) -> str | None:
        """Why an item's next run would tell nothing more; None where it is needed.

        Args:
            key: The row of the item.
            run: The number of the run to be made.
            results: What the session has measured so far.
        """
        if run <= self.plan.fewest_runs:
            return None
        step = self._look(results)
        if key in step.needs_runs:
            return None
        for progress in step.entries:
            if progress.entry.key == key:
                verdict = progress.entry.verdict.value
                after = progress.looked_after
                return verdict if after is None else f"{verdict} after {after} runs"
        return None

    def comparison(self, results: Results) -> Comparison:
        """The verdict on everything that the session measured."""
        return self._look(results).comparison

    def lines(self, results: Results, palette: Palette, *, exit_code: int) -> Iterator[str]:
        """The verdict for the terminal, with the exit code of the whole session."""
        comparison = with_validity(
            diagnose(self.baseline, [results], self.comparison(results)),
            self.baseline,
            [results],
            today=date.today(),
        )
        width = shutil.get_terminal_size().columns
        yield from comparison_text(
            comparison, palette, results.injections, width=width, exit_code=exit_code
        ).splitlines()

    def _look(self, results: Results) -> Step:
        # Judging looks at every run again, and pytest asks before each item.
        if self._step is None or self._judged_runs != len(results.runs):
            self._step = next_step(
                self.baseline,
                [results],
                self.plan,
                cases=self._cases,
                gpus=self._gpus,
                configurations=self._configurations,
            )
            self._judged_runs = len(results.runs)
        return self._step
