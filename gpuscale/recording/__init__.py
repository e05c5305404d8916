"""Baselines from what was measured or published, and their changes: values in, values out."""

from gpuscale.recording.measured import baseline_from_results, how_to_measure_more, measured_at
from gpuscale.recording.published import TableDefaults, figures_from_table
from gpuscale.recording.replay import results_of
from gpuscale.recording.revision import EVERYTHING, Proposal, accepted, proposals, revised

__all__ = [
    "EVERYTHING",
    "Proposal",
    "TableDefaults",
    "accepted",
    "baseline_from_results",
    "figures_from_table",
    "how_to_measure_more",
    "measured_at",
    "proposals",
    "results_of",
    "revised",
]
