"""What figures are drawn of, what they become, and how they look in files and in pages."""

import html
import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from gpuscale.history import History
from gpuscale.records import Baseline, Run
from gpuscale.reports.phrases import counted

INK = "#1b1b1c"
"""Of axes and text; `svg_of` makes it the colour of the text around."""
SURFACE = "#fefefd"
"""Of what is hollow; `svg_of` makes it `--surface`, a property that a page may set."""
Style = tuple[str, str, str | tuple[int, tuple[int, ...]]]
STYLES: tuple[Style, ...] = (
    ("#0072b2", "o", "-"),
    ("#d55e00", "s", "--"),
    ("#009e73", "^", "-."),
    ("#cc79a7", "D", ":"),
    ("#e69f00", "v", (0, (5, 1, 1, 1, 1, 1))),
    ("#56b4e9", "P", (0, (1, 1))),
)
"""Colours that colour-blind people tell apart (Okabe and Ito), with a mark and a line each."""
COLUMN_IN, PAGE_IN = 3.5, 7.2
"""Widths of a column and of a page of a paper, in inches."""
_FONT = "DejaVu Sans"
"""Which comes with matplotlib and is wide: what is laid out in it has room in others."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A figure, and what it says to somebody who does not see it."""

    figure: Figure
    title: str
    description: str


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure that no display and no pyplot knows."""
    return Figure(figsize=(width_in, height_in), layout="constrained")


def look() -> AbstractContextManager[None]:
    """The settings under which figures are drawn and written."""
    return mpl.rc_context(_LOOK)


def add_note(figure: Figure, lines: Sequence[str]) -> None:
    """Adds the lines below the figure, in small print and wrapped to its width."""
    width = int(figure.get_figwidth() * _NOTE_CHARACTERS_PER_IN)
    wrapped = [part for line in lines for part in textwrap.wrap(line, width)]
    if wrapped:
        figure.supxlabel("\n".join(wrapped), x=0.01, ha="left", fontsize=_NOTE_PT)


def notes_of_left_out(count: int, word: str) -> Iterator[str]:
    """The line that tells how many more there are, if any."""
    if count > 0:
        yield f"not shown: {counted(count, f'more {word}')}"


def file_of(picture: Picture, kind: str) -> bytes:
    """The content of a file of the kind `svg`, `png` or `pdf`: on white, 300 dots per inch."""
    metadata = {
        "svg": {"Date": None, "Creator": None, "Title": picture.title},
        "pdf": {"CreationDate": None, "Title": picture.title},
        "png": {"Title": picture.title, "Description": picture.description},
    }
    written = io.BytesIO()
    with look(), mpl.rc_context({"svg.hashsalt": "gpuscale"}):
        picture.figure.savefig(
            written, format=kind, dpi=300, facecolor="white", metadata=metadata[kind]
        )
    return written.getvalue()


def svg_of(picture: Picture) -> str:
    """The picture as an element for a page, in the colours and the font of the text around it.

    No two pictures with other words share an id.
    """
    written = io.StringIO()
    with look(), mpl.rc_context({"svg.hashsalt": picture.title + picture.description}):
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        picture.figure.savefig(written, format="svg", metadata=metadata)
    text = written.getvalue()
    # Ids of groups are the same in every figure, and nothing refers to them.
    used = {*re.findall(r'(?:href="|url\()#([^")]+)', text)}
    text = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", text)
    # A page's rules are the page's.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", text, flags=re.DOTALL)
    text = text.replace(INK, "currentColor").replace(SURFACE, "var(--surface, Canvas)")
    text = text.replace(f"'{_FONT}'", "sans-serif")
    opening, _, content = text[text.index("<svg") :].partition(">")
    title, description = html.escape(picture.title), html.escape(picture.description)
    words = f"<title>{title}</title><desc>{description}</desc>"
    return f'{opening} role="img" stroke-linejoin="round">{words}{content}'
