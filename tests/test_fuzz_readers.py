"""Spoiled results files and baselines: a short part of what `tests/fuzz/readers.py` does."""

import re

import pytest
from format_page import tables
from fuzz import readers
from fuzz.samples import samples

from gpuscale.errors import DecodeError
from gpuscale.records import Baseline


def test_two_thousand_spoiled_files_are_read_or_refused_in_one_line() -> None:
    tally = readers.Tally()
    readers.fuzz(tally, range(2000), seed=4)
    assert tally.faults == []
    assert tally.reads == 4000
    # Mutations that nothing survives, or that nothing notices, would try little.
    assert tally.values.total() > 400
    assert tally.refusals.total() > 2000
    assert len(tally.places) > 100


def test_a_reader_that_breaks_is_reported_with_its_mutation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    rows = "\n".join(tables().values())
    fields = set(re.findall(r"^. `(\w+)`", rows, re.MULTILINE))
    assert {field for field in fields if f'"{field}":' not in text} == set()
