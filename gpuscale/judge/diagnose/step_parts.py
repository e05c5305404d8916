"""Compute the change of each part of a step, and find straggling ranks."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from gpuscale.analysis.estimates import Term, grouped_log_sample
from gpuscale.analysis.moderation import Moderated
from gpuscale.analysis.probabilities import t_quantile
from gpuscale.analysis.step_parts import Part, Rank, Step
from gpuscale.records.cause import Cause, CauseKind, PhaseChange

NAMED_SHARE = 0.1
"""Smallest share of the lost time for which a part of the step is named as a cause."""
_NAMED_CONFIDENCE = 0.95
"""One-sided confidence needed to say that a part of the step got longer."""
_PRIOR_DF = 3.0
"""Weight of the step time's variance as the prior of a part's variance, in degrees of freedom."""
_UNKNOWN_DEVIATION = 0.05
"""Relative standard deviation assumed for the step time if each side has only one run."""
_OTHER_PHASES = 0.2
"""Maximum growth of all phases but the named one, as a share of the lost computing time."""
_LAG_FRACTION = 0.5
"""Fraction of a run's skew by which a rank must lag to count as late in that run; also the fraction
of the mean excess skew above which a run's skew is unusual."""
_ENOUGH_TO_TELL, _NEARLY_ALL = 4, 7 / 8
"""Number of runs, and fraction of them, in which one of two ranks is seldom slowest by chance."""
_RUN_FRACTION = 2 / 3
"""A straggler lags in at least this fraction of the runs with unusual skew."""
_RankId = tuple[str, tuple[str, ...], int | None]
"""Identity of a rank across runs: its host, with either its devices or its rank number."""


class PartChange(msgspec.Struct, frozen=True, kw_only=True):
    """Time of one part of a step in baseline and results: means over runs, in seconds per step."""

    part: Part
    before_s: float
    after_s: float
    lost_s: float
    """`after_s - before_s`, without time that only moved between parts; negative for a gain."""
    noise_s: float
    """Largest change that noise could explain, in seconds per step."""
    share: float = 0.0
    """This part's fraction of the time that all parts lost; 0 if this part became faster."""

    @property
    def is_longer(self) -> bool:
        """True if the part takes longer than in the baseline by more than the noise."""
        return self.lost_s > self.noise_s

    @property
    def stands_out(self) -> bool:
        """True if the part got longer and makes up enough of the lost time to be named a cause."""
        return self.is_longer and self.share >= NAMED_SHARE


def changes_of(
    before: Sequence[Step], after: Sequence[Step], allocation_deviation: float
) -> dict[Part, PartChange]:
    """Compute how much longer each part of a step takes, if known in both baseline and results.

    Changes are differences of means over runs, so they can be added up.
    `allocation_deviation` is the relative standard deviation of a part between jobs.
    """
    if not before or not after:
        return {}
    times = [[step.time_s for step in steps] for steps in (before, after)]
    # A few runs estimate the variance of a part poorly, so it is drawn towards that of the whole
    # step, which no part exceeds by much. Seconds are used, not logarithms, since parts add up.
    known = grouped_log_sample(times).variance
    unknown = (_UNKNOWN_DEVIATION * statistics.fmean(times[0])) ** 2
    prior = Term(variance=unknown if known is None else known, df=_PRIOR_DF)
    old, new = ([step.parts for step in steps] for steps in (before, after))
    found = {}
    for part in old[0]:
        olds, news = ([parts[part] for parts in side if part in parts] for side in (old, new))
        if not olds or not news:
            continue
        # Exposed communication is a difference of two times, which noise may turn below zero.
        before_s, after_s = (max(0.0, statistics.fmean(side)) for side in (olds, news))
        runs = Moderated(sample=grouped_log_sample((olds, news)), prior=prior)
        of_means = (runs.own_part + runs.prior_part) * (1 / len(olds) + 1 / len(news))
        found[part] = PartChange(
            part=part,
            before_s=before_s,
            after_s=after_s,
            lost_s=after_s - before_s,
            noise_s=t_quantile(_NAMED_CONFIDENCE, _PRIOR_DF + runs.sample.df)
            * math.sqrt(of_means + (allocation_deviation * before_s) ** 2),
        )
    changes = _without_hidden_communication(found)
    lost_s = math.fsum(change.lost_s for change in changes.values() if change.lost_s > 0)
    return {
        part: replace(change, share=max(0.0, change.lost_s) / lost_s if lost_s else 0.0)
        for part, change in changes.items()
    }


def _without_hidden_communication(changes: dict[Part, PartChange]) -> dict[Part, PartChange]:
    """Undo the apparent shift of time from communication to computing if communication was hidden.

    Anything that slows ranks independently, such as late batches, hides communication behind the
    delay. Communication then seems to shrink, and computing to grow by the same amount.
    """
    computing, communication = changes.get(Part.COMPUTING), changes.get(Part.COMMUNICATION)
    if computing is None or communication is None:
        return changes
    hidden_s = max(0.0, min(computing.lost_s, -communication.lost_s))
    return changes | {
        Part.COMPUTING: replace(computing, lost_s=computing.lost_s - hidden_s),
        Part.COMMUNICATION: replace(communication, lost_s=communication.lost_s + hidden_s),
    }


def without_turns(before: Sequence[Step], after: Sequence[Step]) -> tuple[Step, ...]:
    """Return `before`; its medians exclude a rank that is nearly always slowest in `after`.

    If chance decides which of two ranks is slower, the median (faster) rank of each run is faster
    than either rank is on average. When one of them is always slower, the other is always the
    median, so computing would seem to take longer even if the other did not become slower.
    """
    slowest = Counter(step.slowest.rank for step in after if len(step.ranks) > 1)
    ((last, count),) = slowest.most_common(1) or [(0, 0)]
    if len(after) < _ENOUGH_TO_TELL or count < _NEARLY_ALL * len(after):
        return tuple(before)
    others = tuple(replace(step, not_median=last) for step in before)
    usual_s, now_s = (math.fsum(s.median.computing_s for s in steps) for steps in (before, others))
    return others if now_s > usual_s else tuple(before)


def most_slowed_phase(phases: Sequence[PhaseChange], change: PartChange) -> tuple[str | None, bool]:
    """Return the phase that caused most of the slowdown, and whether an even slowdown is ruled out.

    The phase is None if the others account for over 1/5 of the slowdown. An even slowdown would
    prolong each phase in proportion to its duration.
    """
    grown_s = {phase.name: phase.after_s - phase.before_s for phase in phases}
    most = max(phases, key=lambda phase: grown_s[phase.name])
    lost_s, before_s = sum(grown_s.values()), sum(phase.before_s for phase in phases)
    others_grown_s = [seconds for name, seconds in grown_s.items() if name != most.name]
    if sum(max(0.0, other_s) for other_s in others_grown_s) > _OTHER_PHASES * lost_s:
        return None, False
    # What phases got shorter shows how much of an even slowdown noise may hide.
    others_s = sum(map(abs, others_grown_s))
    return most.name, others_s * before_s < (lost_s - change.noise_s) * (before_s - most.before_s)


def stragglers_of(steps: Sequence[Step], usual_skew_s: float) -> Cause:
    """Return a cause that names the ranks that lag in most of the runs with unusual skew.

    Hosts and devices are taken from the run with the largest skew; devices are omitted if they
    change between runs. `usual_skew_s` is the baseline's skew; each run must have several ranks.
    """
    # Runs may use devices in turn, so runs with little skew may lack the faulty device.
    mean_s = statistics.fmean(step.skew_s for step in steps)
    threshold_s = usual_skew_s + _LAG_FRACTION * (mean_s - usual_skew_s)
    late = [step for step in steps if step.skew_s >= threshold_s]
    behind = [
        rank
        for step in late
        for rank in step.ranks
        if rank.pace_s >= step.median.pace_s + _LAG_FRACTION * step.skew_s
    ]
    worst = max(steps, key=lambda step: step.skew_s)
    # Runs on part of a node use its GPUs in turn; a slow rank may also change its devices.
    for identify in (_by_device, _by_number):
        counts = Counter(map(identify, behind))
        ids = {rank_id for rank_id, count in counts.items() if count >= _RUN_FRACTION * len(late)}
        if ids:
            slow = (rank for rank in worst.ranks if identify(rank) in ids)
            ranks = sorted(slow, key=lambda rank: rank.rank)
            hosts = tuple(dict.fromkeys(rank.host for rank in ranks))
            there = [rank for rank in worst.ranks if rank.host in hosts]
            return Cause(
                kind=CauseKind.SLOW_RANK,
                code="stragglers",
                ranks=tuple(rank.rank for rank in ranks),
                hosts=hosts,
                device_uuids=tuple(sorted({uuid for r in ranks for uuid in identify(r)[1]})),
                is_whole_host=len(hosts) == 1 and 1 < len(there) == len(ranks) < len(worst.ranks),
                seen_in=(sum(identify(step.slowest) in ids for step in steps), len(steps)),
            )
    return Cause(kind=CauseKind.SLOW_RANK, code="stragglers", seen_in=(0, len(steps)))


def _by_device(rank: Rank) -> _RankId:
    return (rank.host, rank.device_uuids, None) if rank.device_uuids else _by_number(rank)


def _by_number(rank: Rank) -> _RankId:
    return rank.host, (), rank.rank
