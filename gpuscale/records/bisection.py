"""The result of `gpuscale bisect`, which searches the changes that make training slower."""

from enum import StrEnum
from typing import Literal

import msgspec

from gpuscale.records.point import Estimate


class Finding(StrEnum):
    """How a bisection ended."""

    FOUND = "found"
    """The culprits are proved, alone in the good environment and taken back in the bad one."""
    SUSPECTED = "suspected"
    UNDECIDED = "undecided"
    SAME = "same"
    """Both environments are equally fast here and now."""
    REVERSED = "reversed"
    """The bad environment is the faster one."""


Reason = Literal[
    "noise", "trials", "time", "contradictory", "not needed", "cannot be tried", "not explained"
]


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a bisection; speeds are relative changes, so −0.12 is 12 % slower."""

    finding: Finding
    loss: Estimate | None
    """Speed of the bad environment relative to the good one; None if the budget ended too early."""
    culprits: tuple[tuple[int, ...], ...] = ()
    """Indices of the culprits; changes that could not be tried separately are one group."""
    alone: Estimate | None = None
    """Speed of the good environment with only the culprits applied, relative to the good one.

    Commits cannot be applied alone: for them, the speed of the weakest culprit relative to the
    commit before it.
    """
    taken_back: Estimate | None = None
    """Speed of the bad environment without the culprits, relative to the good one.

    For commits: the largest loss in the range outside of the culprits.
    """
    trials: int
    reason: Reason | None = None
    """Reason why no culprit is proved; None if one is, or there is nothing to find."""
