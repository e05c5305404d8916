"""What figures are drawn of, what they become, and how they look in files and in pages."""

import html
import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from gpuscale.analysis.history import History
from gpuscale.records import Baseline, Configuration, Run
from gpuscale.reports.phrases import counted, gpus_text, injection_warning

INK = "#1b1b1c"
"""Of axes and text; `svg_of` makes it the colour of the text around."""
SURFACE = "#fefefd"
"""Of what is hollow; `svg_of` makes it `--surface`, a property that a page may set."""
Style = tuple[str, str, str | tuple[int, tuple[int, ...]]]
STYLES: Mapping[str, Style] = {
    "ddp": ("#0072b2", "o", "-"),
    "dp": ("#d55e00", "s", "--"),
    "fsdp": ("#009e73", "^", "-."),
    "pipeline": ("#cc79a7", "D", ":"),
    "lightning": ("#e69f00", "v", (0, (5, 1, 1, 1, 1, 1))),
    "mp": ("#56b4e9", "P", (0, (1, 1))),
}
"""Colours that colour-blind people tell apart (Okabe and Ito), with a mark and a line each: a
strategy has the same in every picture."""
KINDS = ("svg", "pdf", "png")
COLUMN_IN, PAGE_IN = 3.5, 7.2
"""Widths of a column and of a page of a paper, in inches."""
_FONT = "DejaVu Sans"
"""Which comes with matplotlib and is wide: what is laid out in it has room in others."""
_MOST_CHARACTERS = 28
"""Of the name of a row or case."""
_NOTE_PT = 6.5
_NOTE_CHARACTERS_PER_IN = 18
_LOOK: dict[Any, Any] = {
    "font.size": 8,
    "font.family": _FONT,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.5,
    # A dollar in a name is a dollar.
    "text.parse_math": False,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
    **dict.fromkeys(
        (
            "text.color",
            "axes.edgecolor",
            "axes.labelcolor",
            "axes.titlecolor",
            "xtick.color",
            "ytick.color",
            "grid.color",
        ),
        INK,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What figures are drawn of; each takes what it shows and leaves the rest."""

    runs: Sequence[Run] = ()
    baseline: Baseline | None = None
    history: History | None = None
    injections: Sequence[str] = ()
    """Faults that were made on purpose: such pictures never pass for real ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A figure, and what it says to somebody who does not see it."""

    figure: Figure
    title: str
    description: str
    left_out: Sequence[str] = ()
    """What there was no room for, such as `2 more cases`."""


def styles_of(strategies: Mapping[str, str]) -> dict[str, Style]:
    """A style for each way to train, given its strategy, for as many as there are styles.

    The first way of a strategy, by name, has the strategy's own, and the others what is left.
    """
    styles: dict[str, Style] = {}
    for way, strategy in sorted(strategies.items()):
        if (own := STYLES.get(strategy)) is not None and own not in styles.values():
            styles[way] = own
    free = [style for style in STYLES.values() if style not in styles.values()]
    others = sorted(strategies.keys() - styles.keys())
    return styles | dict(zip(others, free, strict=False))


def row_text(name: str, configuration: Configuration, gpus: int) -> str:
    """`mnist_cnn/ddp, 2 GPUs`, or `2 CPU ranks`."""
    ranks = counted(gpus, "CPU rank") if configuration.device == "cpu" else gpus_text(gpus)
    return f"{name}, {ranks}"


def shortened(name: str) -> str:
    """The name, or of a long one both its ends, for which a column has room."""
    if len(name) <= _MOST_CHARACTERS:
        return name
    return f"{name[: _MOST_CHARACTERS // 2]}…{name[-_MOST_CHARACTERS // 2 :]}"


@contextmanager
def drawn(
    measurements: Measurements,
    width_in: float,
    height_in: float,
    notes: Iterable[str],
    left_out: Iterable[str],
) -> Iterator[Figure]:
    """An empty figure that no display and no pyplot knows, in the look of all of them.

    The notes and what is left out stand below it in small print, faults that were made on purpose
    first.
    """
    notes = (*notes, *(f"not shown: {each}" for each in left_out))
    if measurements.injections:
        notes = (injection_warning(measurements.injections), *notes)
    width = int(width_in * _NOTE_CHARACTERS_PER_IN)
    wrapped = [part for line in notes for part in textwrap.wrap(line, width)]
    with mpl.rc_context(_LOOK):
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        yield figure
        if wrapped:
            figure.supxlabel("\n".join(wrapped), x=0.01, ha="left", fontsize=_NOTE_PT)


def left_out_of(counts: Mapping[str, int]) -> list[str]:
    """`2 more cases`: what there is no room for, by the words for what is counted."""
    return [counted(count, f"more {word}") for word, count in counts.items() if count > 0]


def svg_of(picture: Picture) -> str:
    """The picture as an element of a page, in the colours of the text around it.

    No two pictures with other words share an id.
    """
    text = _element(picture, background="none")
    return text.replace(INK, "currentColor").replace(SURFACE, "var(--surface, Canvas)")


def content_of(picture: Picture, kind: str) -> bytes:
    """The content of a file of one of the `KINDS`: on white, the same for the same picture."""
    if kind == "svg":
        return f"{_element(picture, background='white')}\n".encode()
    words = {"Title": picture.title}
    metadata = {"pdf": {**words, "CreationDate": None}, "png": words}
    written = io.BytesIO()
    with mpl.rc_context(_LOOK):
        picture.figure.savefig(
            written, format=kind, dpi=300, facecolor="white", metadata=metadata[kind]
        )
    return written.getvalue()


def _element(picture: Picture, *, background: str) -> str:
    """An SVG element with its accessible name and description, without rules of style."""
    title, description = html.escape(picture.title), html.escape(picture.description)
    written = io.StringIO()
    with mpl.rc_context({**_LOOK, "svg.hashsalt": title + description}):
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        picture.figure.savefig(written, format="svg", facecolor=background, metadata=metadata)
    text = written.getvalue()
    # Ids of groups are the same in every figure, and nothing refers to them.
    used = {*re.findall(r'(?:href="|url\()#([^")]+)', text)}
    text = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", text)
    # A hundredth of a point is less than anybody sees, and a tenth of the element.
    text = re.sub(
        r' (?:d|x|y|transform)="[^"]+"',
        lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]),
        text,
    )
    # Inside of a page such a rule would be the page's.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", text, flags=re.DOTALL)
    text = text.replace(f"'{_FONT}'", "sans-serif")
    lines = [line.strip() for line in text[text.index("<svg") :].splitlines()]
    opening, _, content = "\n".join(lines).partition(">")
    words = f"<title>{title}</title><desc>{description}</desc>"
    return f'{opening} role="img" stroke-linejoin="round">{words}{content}'
