"""Figures with stacked bars: the efficiency budget, and the phases of a step."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.ticker import PercentFormatter

from gpuscale.analysis import step_parts
from gpuscale.base.text import format_percent, format_seconds, whole_percent
from gpuscale.records import Configuration, Run
from gpuscale.reports.figures import picture
from gpuscale.reports.figures.picture import Measurements, Picture, drawn
from gpuscale.reports.phrases import OPEN, UNCERTAIN, is_uncertain, row_text

MOST_BARS = 24
_SHARE = "share of a step"
_BAR_IN = 0.5
_BAR_HEIGHT = 0.36
"""Height of a bar as a share of the space per bar; its label and small parts take the rest."""
_LEAST_LABELLED = 0.09
"""Smallest part with room for its number, as a share of the longest bar."""
_NONE = "0 %"
"""Text of a share that is too small for a label or an entry of the legend."""
_LIGHT, _BLUE, _DARK = "#bdbdbd", "#0072b2", "#5f5f5f"
_FILLS = {
    **dict.fromkeys(("communication", "bubble"), "#d55e00"),
    "data": "#56b4e9",
    "h2d": "#e69f00",
    "forward": _BLUE,
    **dict.fromkeys(("skew", "imbalance"), "#f0e442"),
    **dict.fromkeys(("backward", "micro-batching"), "#009e73"),
    "optimizer": "#cc79a7",
    **dict.fromkeys(("wait", "rest"), _DARK),
}
"""Colours of phases and budget parts, keyed by name; other parts are light grey."""


class _Bar(NamedTuple):
    """A stacked bar for one row, with the parts in stacking order."""

    case: str
    label: str
    parts: Mapping[str, float]
    shares: Mapping[str, str]
    """Text on each part: the part's share of a step."""
    is_baseline: bool = False
    """True for the bar of the baseline, drawn paler, below that of the same row."""


def budget_picture(measurements: Measurements) -> Picture | None:
    """Draw the efficiency budget of each row on several GPUs; return None if no row has one."""
    # Without windows, as in a baseline, gradient work of one rank would count as communication.
    budgets, before = map(_budgets, (measurements.runs, measurements.earlier))
    # If there is not room for all bars, those that lost most are shown.
    by_loss = sorted(budgets.values(), key=lambda each: each.efficiency.value)
    # A bar of the baseline below each row leaves room for half as many.
    worst = by_loss[: MOST_BARS // 2 if measurements.earlier else MOST_BARS]
    names = picture.distinct_names([configuration for configuration, _ in budgets])
    bars, rows = [], [(row, each) for row, each in budgets.items() if each in worst]
    for (configuration, gpus), each in rows:
        bars.append(_budget_bar(each, row_text(names, configuration, gpus)))
        if (earlier := before.get((configuration, gpus))) is not None:
            bars.append(_budget_bar(earlier, "baseline"))
    has_gains = any(part < 0 for bar in bars for part in bar.parts.values())
    notes = ["a part below 0 is shorter than in the run without other ranks"] if has_gains else []
    if any(is_uncertain(each.efficiency) for each in worst):
        notes.append(f"{OPEN}: {UNCERTAIN}")
    left_out = picture.left_out_of("row", len(budgets) - len(rows))
    return _picture(measurements, "What the efficiency was lost to", _SHARE, bars, notes, left_out)


def _budgets(runs: Sequence[Run]) -> dict[tuple[Configuration, int], step_parts.EfficiencyBudget]:
    """Return efficiency budgets that have measured parts, keyed by configuration and GPU count."""
    found = (each for each in step_parts.efficiency_budgets(runs) if each.parts)
    return {(each.configuration, each.key.gpus): each for each in found}


def _budget_bar(budget: step_parts.EfficiencyBudget, label: str) -> _Bar:
    parts = {"efficiency": budget.efficiency.value, **budget.parts, "rest": budget.rest}
    hundredths = budget.hundredths.items()
    shares = {name: format_percent(value / 100, decimals=0) for name, value in hundredths}
    if is_uncertain(budget.efficiency):
        shares["efficiency"] += f" {OPEN}"
    return _Bar(budget.configuration.case, label, parts, shares, label == "baseline")


def phases_picture(measurements: Measurements) -> Picture | None:
    """Draw the phases of each row's average step, a panel per case; return None without phases."""
    baseline = measurements.baseline
    runs_before = measurements.earlier or (baseline.runs if baseline else ())
    steps, before = map(step_parts.typical_steps, (measurements.runs, runs_before))
    shown = [*steps.items()][: MOST_BARS // 2 if runs_before else MOST_BARS]
    longest_s = max((step.time_s for step in (*steps.values(), *before.values())), default=0.0)
    unit, per_s = ("s", 1) if longest_s >= 1 else ("ms", 1000)
    names = picture.distinct_names([point.configuration for point in steps])
    bars = []
    for point, current in shown:
        row = row_text(names, point.configuration, point.gpus)
        for name, step in ((row, current), ("baseline", before.get(point))):
            if step is not None:
                bars.append(_phases_bar(step, point.configuration.case, name, per_s))
    notes = ["an average step of the median rank; its parts, timed apart, need not add up to it"]
    notes += ["communication: not hidden by the backward"]
    left_out = picture.left_out_of("row", len(steps) - len(shown))
    title = "An average step, phase by phase"
    return _picture(measurements, title, f"step time ({unit})", bars, notes, left_out)


def _phases_bar(step: step_parts.TypicalStep, case: str, name: str, per_s: int) -> _Bar:
    times_s = {phase: time_s for phase, time_s in step.phases_s.items() if time_s is not None}
    return _Bar(
        case=case,
        label=f"{name}: {format_seconds(step.time_s)}",
        parts={phase: time_s * per_s for phase, time_s in times_s.items()},
        shares={phase: whole_percent(part / step.time_s) for phase, part in times_s.items()},
        is_baseline=name == "baseline",
    )


def _picture(
    measurements: Measurements,
    title: str,
    quantity: str,
    bars: Sequence[_Bar],
    notes: Sequence[str],
    left_out: Sequence[str],
) -> Picture | None:
    """Draw bars, with one panel for each case; return None without bars."""
    if not bars:
        return None
    if measurements.baseline is not None and not any(bar.is_baseline for bar in bars):
        lack = "it has no such parts of these rows (a baseline file has no windows)"
        notes = [*notes, f"the baseline is not drawn: {lack}"]
    # The bar with the most parts determines the order in which the parts of all bars are stacked.
    fullest = sorted(bars, key=lambda bar: -len(bar.parts))
    parts = [*dict.fromkeys(name for bar in fullest for name in bar.parts)]
    facets = [[*facet] for _, facet in groupby(bars, key=lambda bar: bar.case)]
    heights = [len(facet) + 1.3 for facet in facets]
    height_in = 0.9 + _BAR_IN * sum(heights)
    with drawn(measurements, title, picture.COLUMN_IN, height_in, notes, left_out) as image:
        grid = image.figure.subplots(len(facets), squeeze=False, height_ratios=heights)
        for (axes,), facet in zip(grid, facets, strict=True):
            _draw(axes, facet, parts)
            axes.set_xlabel(quantity)
            if quantity == _SHARE:
                axes.xaxis.set_major_formatter(PercentFormatter(1))
    return image


def _draw(axes: Axes, bars: Sequence[_Bar], parts: Sequence[str]) -> None:
    """Draw the bars of one case; negative parts are stacked to the left of zero."""
    places = range(len(bars))
    gains, losses = [0.0 for _ in bars], [0.0 for _ in bars]
    longest = max(sum(part for part in bar.parts.values() if part > 0) for bar in bars)
    for name in parts:
        widths = [bar.parts.get(name, 0.0) for bar in bars]
        begins = [(gains if widths[at] < 0 else losses)[at] for at in places]
        fill = _FILLS.get(name, _LIGHT)
        is_seen = any(bar.shares.get(name, _NONE) != _NONE for bar in bars)
        paler = [(1 + level) / 2 for level in to_rgb(fill)]
        boxes = axes.barh(
            places,
            widths,
            left=begins,
            height=_BAR_HEIGHT,
            color=[paler if bar.is_baseline else fill for bar in bars],
            edgecolor=picture.SURFACE,
            linewidth=0.6,
            # matplotlib's legend leaves out labels that begin with an underscore.
            label=name if is_seen else f"_{name}",
        )
        texts = axes.bar_label(
            boxes,
            [
                bar.shares.get(name, "") if width >= _LEAST_LABELLED * longest else ""
                for bar, width in zip(bars, widths, strict=True)
            ],
            label_type="center",
            fontsize=6.5,
        )
        for text, bar in zip(texts, bars, strict=True):
            is_dark = fill in (_BLUE, _DARK) and not bar.is_baseline
            text.set_color("#ffffff" if is_dark else "#000000")
        for at, width in enumerate(widths):
            (gains if width < 0 else losses)[at] += width
    for place, bar in enumerate(bars):
        above, below = (0.0, place - _BAR_HEIGHT / 2), (0.0, place + _BAR_HEIGHT / 2)
        small = [
            f"{name} {bar.shares[name]}"
            for name, part in bar.parts.items()
            if part < _LEAST_LABELLED * longest and bar.shares.get(name, _NONE) != _NONE
        ]
        # There is free space next to the label, so a long one must not narrow the bars.
        settings: dict[str, Any] = {"textcoords": "offset points", "in_layout": False}
        axes.annotate(bar.label, above, (3, 1), va="bottom", **settings)
        axes.annotate(", ".join(small), below, (3, -1), va="top", fontsize=5.5, **settings)
    axes.axvline(0, color=picture.INK, linewidth=0.8)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    # Leave room for the first label.
    axes.set_ylim(len(bars) - 0.5, _BAR_HEIGHT / 2 - 1)
    axes.margins(x=0.02)
