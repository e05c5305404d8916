"""Figures of results, baselines and histories, drawn by matplotlib (install extra `plots`)."""

from collections.abc import Callable, Mapping
from functools import partial

from gpuscale.reports.figures.history_plot import history_picture
from gpuscale.reports.figures.picture import KINDS, Measurements, Picture, content_of, svg_of
from gpuscale.reports.figures.scaling_plots import scaling_picture
from gpuscale.reports.figures.stacked_bars import budget_picture, phases_picture

FIGURES: Mapping[str, Callable[[Measurements], Picture | None]] = {
    "scaling": partial(scaling_picture, ("time", "throughput", "speedup")),
    "time": partial(scaling_picture, ("time",)),
    "throughput": partial(scaling_picture, ("throughput",)),
    "speedup": partial(scaling_picture, ("speedup",)),
    "budget": budget_picture,
    "phases": phases_picture,
    "history": history_picture,
}
"""Functions that draw, keyed by name; they return None if there is nothing to draw."""
