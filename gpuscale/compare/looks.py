"""The runs of a session in their order, and what any of its looks sees of them."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gpuscale.compare.comparison import Assessment, assess
from gpuscale.compare.error_rates import ErrorRates
from gpuscale.compare.matching import Row
from gpuscale.records import Baseline, Results, Run
from gpuscale.scaling import PointKey, References


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """The runs of a session by their order, and how to judge some of them."""

    baseline: Baseline
    results: Sequence[Results]
    positions: Sequence[Sequence[int]]
    """For each run of each results file: at which look it is seen first, from 1 on."""
    valid: Mapping[PointKey, int]
    """How many runs of each item gave a number."""
    attempts: Mapping[PointKey, int]
    """How many were made of it."""
    most_runs: int
    rates: ErrorRates
    """Of each look."""
    cases: Collection[str] | None
    gpus: Collection[int] | None

    @classmethod
    def of(
        cls,
        baseline: Baseline,
        results: Sequence[Results],
        *,
        most_runs: int,
        rates: ErrorRates,
        cases: Collection[str] | None,
        gpus: Collection[int] | None,
    ) -> "Looks":
        """Take the runs in the order in which they ended."""
        valid: Counter[PointKey] = Counter()
        attempts: Counter[PointKey] = Counter()
        positions = []
        for result in results:
            own = []
            for run in result.runs:
                key = PointKey.of(run)
                own.append(valid[key] + 1)
                attempts[key] += 1
                if run.is_valid:
                    valid[key] += 1
            positions.append(own)
        return cls(
            baseline=baseline,
            results=results,
            positions=positions,
            valid=valid,
            attempts=attempts,
            most_runs=most_runs,
            rates=rates,
            cases=cases,
            gpus=gpus,
        )

    def assess(self, after: int, until: float) -> Assessment:
        """The judgement by the runs of each item after one look and up to another.

        What this session does not measure is all there already, and serves each look. Where
        those on 1 GPU all lie before the first position, they serve as the reference still.
        """
        part = [
            msgspec.structs.replace(
                result,
                runs=tuple(
                    run
                    for run, position in zip(result.runs, positions, strict=True)
                    if after < position <= until or self._serves_always(run, after)
                ),
            )
            for result, positions in zip(self.results, self.positions, strict=True)
        ]
        return assess(self.baseline, part, cases=self.cases, gpus=self.gpus, rates=self.rates)

    def _serves_always(self, run: Run, after: int) -> bool:
        if not self._measures(run.gpus):
            return True
        return run.gpus == 1 and self.valid.get(PointKey.of(run), 0) <= after

    def has_reached(self, row: Row, look: int) -> bool:
        """Whether the row's runs, and those on 1 GPU beside them, are made for this look."""
        if row.after is None:
            return False
        key = row.after.point.point_key
        if self.valid.get(key, 0) < look:
            return False
        reference = None if key.gpus == 1 else References(self.valid).of(key)
        if reference is None or not self._measures(1) or self.valid[reference] >= look:
            return True
        return self.attempts[reference] >= self.most_runs

    def _measures(self, gpus: int) -> bool:
        return self.gpus is None or gpus in self.gpus
