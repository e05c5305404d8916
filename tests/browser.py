"""A page as a real Chromium lays it out."""

import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path

import pytest
from command_line import ran

_NAMES = ("chromium", "chromium-browser", "google-chrome")
# In frames, since a window of Chromium has a least width that is more than a phone's.
_FRAME = '<iframe style="width:{width}px;height:900px;border:0" srcdoc="{page}"></iframe>'
_FRAMES = """<!doctype html><meta charset="utf-8"><body>
{frames}
<pre id="seen"></pre>
<script>
function seenIn(frame) {{
  const page = frame.contentDocument, root = page.documentElement;
  const name = (it) => `${{it.tagName.toLowerCase()}}: ${{it.textContent.trim().slice(0, 60)}}`;
  const outside = (it, its, by) => it.left < its.left - by || it.right > its.right + by;
  const texts = [...page.querySelectorAll("h1, h2, h3, p, li, dt, dd, a, figcaption, svg")];
  const cut = texts.filter((it) => !it.closest(".scroll")
    && outside(it.getBoundingClientRect(), {{left: 0, right: root.clientWidth}}, 0.5));
  const labels = [...page.querySelectorAll("svg text")];
  const cutLabels = labels.filter((it) => it.getClientRects().length
    && outside(it.getBoundingClientRect(), it.closest("svg").getBoundingClientRect(), 1));
  const cells = [...page.querySelectorAll("th, td")].filter(
    (it) => it.scrollWidth > it.clientWidth);
  const ids = [...page.querySelectorAll("[id]")].map((it) => it.id);
  return {{
    overflow: root.scrollWidth - root.clientWidth,
    cut: [...cut, ...cutLabels, ...cells].map(name),
    hidden: [...page.querySelectorAll(".scroll")].filter(
      (it) => it.scrollWidth > it.clientWidth).map(name),
    unnamed: [...page.querySelectorAll("svg, [role=region]")].filter(
      (it) => !(it.querySelector("title")?.textContent || it.getAttribute("aria-label"))).map(name),
    figures: page.querySelectorAll("figure svg").length,
    twice: ids.filter((id, place) => ids.indexOf(id) !== place),
    scripts: page.querySelectorAll("script").length,
    from_outside: [...page.querySelectorAll("[src], link, a")].map(
      (it) => it.getAttribute("src") || it.getAttribute("href")).filter(
      (it) => !/^(#|data:)/.test(it)),
    text: root.innerText,
  }};
}}
addEventListener("load", () => {{
  const seen = [...document.querySelectorAll("iframe")].map(seenIn);
  document.getElementById("seen").textContent = JSON.stringify(seen);
}});
</script>
"""


@dataclass(frozen=True, kw_only=True)
class Seen:
    overflow: int
    """Pixels by which the page is wider than its window."""
    cut: Sequence[str]
    """Texts that leave the window, their picture or their cell, but in a box that scrolls."""
    hidden: Sequence[str]
    """Boxes that must be scrolled to be seen whole."""
    unnamed: Sequence[str]
    """Figures and regions without an accessible name."""
    figures: int
    twice: Sequence[str]
    """Ids that several elements have."""
    scripts: int
    from_outside: Sequence[str]
    """Addresses that are neither in the page nor its own data."""
    text: str
    """All that is readable."""
    console: Sequence[str]
    """Messages to the developer."""


def seen_in_chromium(page: str, folder: Path, *widths: int) -> list[Seen]:
    """Return the page in windows of these widths in pixels; skip the test without Chromium."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        if os.environ.get("TESTS_REQUIRE_CHROMIUM"):
            pytest.fail("Chromium is required here, and is not installed")
        pytest.skip("needs Chromium: apt-get install chromium")
    frames = (_FRAME.format(width=width, page=escape(page)) for width in widths)
    file = folder / "frames.html"
    file.write_text(_FRAMES.format(frames="\n".join(frames)))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    options += [f"--user-data-dir={folder / 'profile'}", "--window-size=1700,1000", "--dump-dom"]
    done = ran(program, *options, file.as_uri(), timeout=120)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return [Seen(**each, console=console) for each in json.loads(unescape(found[1]))]
