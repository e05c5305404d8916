"""Spoiled results files and baselines: a short part of what `tests/fuzz/readers.py` does."""

import re

import pytest
from format_page import lists
from fuzz import readers
from fuzz.samples import samples

from gpuscale.base.errors import DecodeError
from gpuscale.records import Baseline


@pytest.mark.parametrize("files", [400, pytest.param(4000, marks=pytest.mark.thorough)])
def test_spoiled_files_are_read_or_refused_in_one_line(files: int) -> None:
    tally = readers.Tally()
    readers.fuzz(tally, range(files), seed=4)
    assert tally.faults == []
    assert tally.reads == 2 * files
    # Mutations that nothing survives, or that nothing notices, would try little.
    assert tally.values.total() > files / 5
    assert tally.refusals.total() > files
    assert len(tally.places) > 50


def test_a_broken_reader_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(text: str) -> Baseline:
        raise KeyError("measured")

    def talkative(text: str) -> Baseline:
        raise DecodeError("", "two\nlines \x1b[2J " + "x" * 2000)

    monkeypatch.setitem(readers.READERS, "baseline", careless)
    monkeypatch.setitem(readers.READERS, "either", talkative)
    tally = readers.Tally()
    readers.fuzz(tally, range(7, 8), seed=4)
    assert [re.split(r":\n", fault)[0] for fault in tally.faults] == [
        "mutation 7, reader baseline",
        "mutation 7, reader either",
    ]
    assert "KeyError: 'measured'" in tally.faults[0]


def test_the_files_that_are_spoiled_have_every_field() -> None:
    text = "".join(samples().values())
    items = "\n".join(lists().values()).splitlines()
    names = [re.split(r" \(|: ", item)[0] for item in items]
    fields = set(re.findall(r"`(\w+)`", "".join(names)))
    assert {field for field in fields if f'"{field}":' not in text} == set()
