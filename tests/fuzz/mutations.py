"""Ways to spoil a file: its bytes, its lines, its structure and its values."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

Mutation = Callable[[random.Random, bytes], bytes]
Change = Callable[[Any, str | int], None]

# What json.dumps cannot write stands in for itself until the text is complete.
RAW = {
    "@deep list@": "[" * 3000 + "]" * 3000,
    "@deep object@": '{"a":' * 3000 + "1" + "}" * 3000,
    "@nan@": "NaN",
    "@infinity@": "-Infinity",
    "@overflow@": "1e999",
    "@underflow@": "1e-999",
    "@digits@": "9" * 6000,
    "@surrogate@": '"\\ud800"',
    "@escape@": '"\\u001b[2J"',
    "@twice@": '{"a": 1, "a": 2}',
    "@bad escape@": '"\\q"',
}
VALUES: tuple[Any, ...] = (
    *RAW,
    *(None, True, False, [], {}, "", [[]], {"": None}),
    *(0, -1, 1, 2, 1e-9, 1e9, -0.0, 0.5, 1.5, 1e308, 5e-324, 2**31, 2**53 + 1, 2**64, 10**25),
    *("x", " ", " x ", "0", "null", "NaN", "\0", "\n", "\u202e", "\u2028", "é", "中文", "🔥"),
    *("x" * 300, "y" * 20_000, "cuda", "cpu", "ddp", "fp32", "../..", "{}", "%s", "$(id)"),
    *("2026-11-21T03:30:15+00:00", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"),
    *("2027-05-01", "9999-12-31", "2026-02-30", "20270501"),
)


def change_bytes(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def insert_bytes(rng: random.Random, content: bytes) -> bytes:
    """Signs of JSON or other bytes where they do not belong."""
    at = rng.randint(0, len(content))
    signs = (*(b"{", b"}", b"[", b"]", b",", b":"), *(b'"', b"\\", b"\n", b"\r\n", b"\0"))
    inserted = rng.choice((*signs, b"\xef\xbb\xbf", rng.randbytes(rng.randint(1, 8))))
    return content[:at] + inserted + content[at:]


def cut(rng: random.Random, content: bytes) -> bytes:
    ends = sorted(rng.randint(0, len(content)) for _ in range(2))
    return content[: ends[1]] if rng.random() < 0.7 else content[ends[0] : ends[1]]


def change_lines(rng: random.Random, content: bytes) -> bytes:
    """Lines dropped, repeated, swapped, joined, or ended in another way."""
    lines = content.split(b"\n")
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    action = rng.randrange(6)
    if action == 0:
        del lines[one]
    elif action == 1:
        lines.insert(other, lines[one])
    elif action == 2:
        lines[one], lines[other] = lines[other], lines[one]
    elif action == 3:
        lines.insert(one, rng.choice((b"", b" ", b"\t", b"{}", b"null", b"#")))
    elif action == 4:
        lines[one : one + 2] = [b"".join(lines[one : one + 2])]
    return (b"\r\n" if action == 5 else b"\n").join(lines)


def change_value(rng: random.Random, content: bytes) -> bytes:
    def change(holder: Any, key: str | int) -> None:
        holder[key] = rng.choice(VALUES)

    return _in_a_document(rng, content, change)


def change_structure(rng: random.Random, content: bytes) -> bytes:
    """A member dropped, renamed, repeated, moved, wrapped or nested."""

    def change(holder: Any, key: str | int) -> None:
        action = rng.randrange(6)
        value = holder[key]
        if action == 0:
            del holder[key]
        elif action == 1 and isinstance(holder, dict):
            holder[rng.choice((f"{key}x", str(key).upper(), "", "x" * 300, "\u202e"))] = value
        elif action == 2 and isinstance(holder, list):
            holder.extend([value] * rng.choice((1, 2, 50)))
        elif action == 3:
            holder[key] = [value]
        elif action == 4:
            holder[key] = {str(key): value}
        elif isinstance(value, dict | list):
            keys = list(value) if isinstance(value, dict) else list(range(len(value)))
            if keys:
                holder[key] = value[rng.choice(keys)]

    return _in_a_document(rng, content, change)


MUTATIONS: tuple[Mutation, ...] = (
    change_bytes,
    insert_bytes,
    cut,
    change_lines,
    # A changed value gets furthest into the readers.
    *(change_value, change_structure) * 4,
)


def mutated(rng: random.Random, content: bytes) -> bytes:
    """The file after one to four mutations."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        content = rng.choice(MUTATIONS)(rng, content)
    return content


def _in_a_document(rng: random.Random, content: bytes, change: Change) -> bytes:
    """The file with one of its JSON documents changed; unchanged where there is none."""
    text = content.decode("utf-8", errors="replace")
    documents = [text] if text.startswith("{\n") else text.split("\n")
    position = rng.randrange(len(documents))
    try:
        document = json.loads(documents[position])
    except (ValueError, RecursionError):
        return content
    places = [*_places(document)]
    if not places:
        return content
    change(*rng.choice(places))
    documents[position] = json.dumps(document, indent=2 if len(documents) == 1 else None)
    text = "\n".join(documents)
    for mark, raw in RAW.items():
        if mark in text:
            text = text.replace(f'"{mark}"', raw)
    return text.encode("utf-8", errors="surrogatepass")


def _places(value: Any) -> Iterator[tuple[Any, str | int]]:
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, dict | list):
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            for key in keys:
                yield holder, key
                waiting.append(holder[key])
