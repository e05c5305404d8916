"""Baselines from what was measured or published, and their changes: values in, values out."""

from gpuscale.recording.from_results import (
    baseline_from_results,
    entries_of,
    how_to_measure_more,
    measured_at,
    results_of,
)
from gpuscale.recording.published import TableDefaults, figures_from_table
from gpuscale.recording.update import EVERYTHING, Proposal, accepted, proposals, revised

__all__ = [
    "EVERYTHING",
    "Proposal",
    "TableDefaults",
    "accepted",
    "baseline_from_results",
    "entries_of",
    "figures_from_table",
    "how_to_measure_more",
    "measured_at",
    "proposals",
    "results_of",
    "revised",
]
