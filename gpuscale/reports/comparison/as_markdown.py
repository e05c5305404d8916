"""A comparison as a comment on a merge request: the verdict first, the rest within size limits.

GitHub accepts comments of up to 65,536 characters, GitLab of up to a million. Items that exceed the
limit of their section are counted instead of shown.
"""

import re
from collections.abc import Iterable, Sequence

from gpuscale.reports.comparison import Explanation, View
from gpuscale.reports.comparison.rows import Row, losses_found
from gpuscale.reports.phrases import UNKNOWN, counted

_SIGNS = ("❌", "⚠️", "✅")
"""Emoji for verdicts, indexed by `Verdict.weight`."""
# In bytes of UTF-8, so that the comment fits however GitHub counts characters.
_ROWS_BYTES = 14_000
_REASONS_BYTES = 16_000
_NOTES_BYTES = 4_000
_ALL_BYTES = 60_000
"""Maximum size of the whole comment; passing rows get the space that other sections leave."""
_FRAME_BYTES = 1_000
"""Space reserved for headers, legends and the lines that count omitted rows."""
_LONGEST_TEXT = 600
# Characters that GitHub and GitLab treat as markup; `_` only at the beginning or end of a word.
_MARKUP = re.compile(r"[\\`*|~\[\]]|(?<!\w)_|_(?!\w)")
# `@name` would notify a user; `#12` and `!12` would link to an issue or a merge request.
_REFERENCE = re.compile(r"(?<!\w)([@#!])(?=\w)")


def render(view: View) -> str:
    """Return the comparison in GitHub's and GitLab's Markdown, without a final line break."""
    rows = view.ranked
    worst = min((row.entry.verdict.weight for row in rows), default=1)
    blocks = [f"**{_plain(view.warning)}**"] if view.warning else []
    blocks += [
        f"### {_SIGNS[worst]} GPU scaling: {view.outcome}",
        f"**{view.summary}** (exit code {view.exit_code})",
        "\n".join(f"- **{_plain(label)}** {_plain(text)}" for label, text in view.headline),
    ]
    open_rows = [row for row in rows if not row.entry.verdict.is_pass]
    if open_rows:
        blocks.append(_table(_header(rows), map(_row, open_rows), _ROWS_BYTES))
    blocks += _within(_reasons(view.unsaid), _REASONS_BYTES, "more reason")
    if view.notes:
        lines = [f"- {_plain(note)}" for note in view.notes]
        blocks.append("\n".join(_within(lines, _NOTES_BYTES, "more note")))
    room = _ALL_BYTES - _FRAME_BYTES - _size("\n\n".join(blocks))
    return "\n\n".join((*blocks, *_fine_rows(rows, room)))


def _header(rows: Sequence[Row]) -> str:
    names = [name for row in rows[:1] for name in row.numbers]
    rules = "|---|--:" + "|---" * (len(names) + 3) + "|"
    return f"| case | GPUs | {' | '.join(names)} | change | verdict | |\n{rules}"


def _row(row: Row) -> str:
    word = row.verdict if row.entry.verdict.is_pass else f"**{row.verdict}**"
    return _cells(
        _plain(row.name),
        str(row.entry.key.gpus),
        *(pair.line for pair in row.numbers.values()),
        row.moved.line or UNKNOWN,
        f"{_SIGNS[row.entry.verdict.weight]} {word}",
        _plain(row.short_reason),
    )


def _reasons(explanations: Iterable[Explanation]) -> Iterable[str]:
    """Yield a block for each explanation: the sentence, then lost metrics and causes."""
    for found in explanations:
        lines = [f"**{_plain(found.subject)}**: {_plain(found.reason)}"]
        lines += [f"- {_plain(metric)}" for metric in found.lost_metrics]
        for number, cause in enumerate(found.causes, start=1):
            lines.append(f"{number}. {_plain(cause.line)}")
            lines += [f"   - {_plain(fact)}" for fact in cause.facts]
            lines += [f"   - next: {_plain(cause.next_step)}"] if cause.next_step else []
        if len(lines) > 1:
            # Some renderers need an empty line between a paragraph and a list.
            lines.insert(1, "")
        yield "\n".join(lines)


def _fine_rows(rows: Sequence[Row], size: int) -> list[str]:
    fine = [row for row in rows if row.entry.verdict.is_pass]
    table = "\n\n".join((_table(_header(fine), map(_row, fine), size), losses_found(fine))).rstrip()
    return [_folded(f"{counted(len(fine), 'row')} without a loss", table)] if fine else []


def _cells(*texts: str) -> str:
    return f"| {' | '.join(texts)} |"


def _table(header: str, rows: Iterable[str], size: int) -> str:
    return "\n".join((header, *_within(rows, size, "more row", "\n… ")))


def _within(texts: Iterable[str], size: int, rest: str, begin: str = "… ") -> list[str]:
    """Return the first texts that fit into `size` bytes, and a line that counts those left out."""
    texts = [*texts]
    for number, text in enumerate(texts):
        size -= _size(text) + 2
        if size < 0:
            return [*texts[:number], f"{begin}{counted(len(texts) - number, rest)}, left out here"]
    return texts


def _size(text: str) -> int:
    return len(text.encode("utf-8", errors="replace"))


def _folded(summary: str, content: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{content}\n\n</details>"


def _plain(text: str) -> str:
    """Shorten a long text, and escape markup, HTML and mentions of users."""
    if len(text) > _LONGEST_TEXT:
        text = f"{text[: _LONGEST_TEXT - 1]}…"
    text = " ".join(text.split())
    text = _REFERENCE.sub("\\1\u2060", text)
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKUP.sub(r"\\\g<0>", text)
