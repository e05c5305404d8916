"""Spoils stored files, and checks what readers make of them.

It is a value that can be written and read again, and shown, or an error of one printable line.
"""

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from builders import results_text, shown_text
from fuzz.mutations import mutated
from fuzz.samples import samples

from gpuscale.base.errors import GpuscaleError
from gpuscale.records import Baseline, Results
from gpuscale.records.record import from_json, to_json
from gpuscale.store.campaign_folders import SweepRecord
from gpuscale.store.file_formats import decode_any, decode_baseline, decode_results, encode_baseline
from gpuscale.store.files import decode_content

READERS: dict[str, Callable[[str], Results | Baseline | SweepRecord]] = {
    "results": decode_results,
    "baseline": decode_baseline,
    "sweep": partial(from_json, SweepRecord),
    "either": decode_any,
}


@dataclass(slots=True)
class Tally:
    values: int = 0
    refusals: int = 0
    places: set[str] = field(default_factory=set)
    """Distinct problems, without their details."""
    faults: list[str] = field(default_factory=list)


def fuzz(tally: Tally, mutations: range, seed: int) -> None:
    """Reads the mutated files with these numbers; each follows from seed and number alone."""
    originals = {name: text.encode() for name, text in samples().items()}
    for number in mutations:
        rng = random.Random(f"{seed}:{number}")
        # A sweep in place of every tenth pair, since its format is small.
        kind = "sweep" if number % 20 < 2 else ("results", "baseline")[number % 2]
        content = mutated(rng, originals[kind])
        for reader in (kind, "either"):
            try:
                _read(tally, reader, content, show=number % 10 < 2)
            except Exception:
                fault = f"mutation {number}, reader {reader}:\n{traceback.format_exc()}"
                tally.faults.append(fault)


def _read(tally: Tally, reader: str, content: bytes, *, show: bool) -> None:
    try:
        value = decode_content(Path("file.json"), content, READERS[reader])
    except GpuscaleError as error:
        message = str(error)
        assert message.isprintable(), f"not printable: {message!r}"
        assert len(message) <= 900, f"{len(message)} characters: {message[:200]}"
        tally.refusals += 1
        tally.places.add(message.split(": ")[-1][:30])
        return
    tally.values += 1
    if isinstance(value, Baseline):
        assert decode_baseline(encode_baseline(value)) == value, "reads back as another baseline"
    elif isinstance(value, SweepRecord):
        assert from_json(SweepRecord, to_json(value)) == value, "reads back as another sweep"
        assert value.not_measured().keys() >= {*value.nodes} - {job.node for job in value.jobs}
        return
    else:
        assert decode_results(results_text(value)) == value, "reads back as other results"
    if show:
        shown_text(value)
