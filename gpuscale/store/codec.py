"""Encode and decode the two file formats, for results and for baselines (docs/format.md).

A `DecodeError` gives the location of a problem, such as `line 42: runs[2].measured`. Version 1 of
the formats was never released and is not read.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from gpuscale.base.errors import DecodeError
from gpuscale.base.printable import shown
from gpuscale.records import Baseline, Results, Run
from gpuscale.records.json_text import (
    from_json,
    is_json,
    to_json,
    validate_unique_keys,
)
from gpuscale.records.metrics import STEP_TIME
from gpuscale.records.run import Header

RESULTS_FORMAT = "gpuscale-results"
BASELINE_FORMAT = "gpuscale-baseline"
VERSION = 2
LONGEST_LINE = 32 * 1024 * 1024
"""Maximum characters per line; a run on 4096 GPUs with 50 windows needs about a sixth of that."""

_KIND = {RESULTS_FORMAT: "a results file", BASELINE_FORMAT: "a baseline"}
_USE = {
    RESULTS_FORMAT: "'gpuscale show' shows it, and 'gpuscale baseline record' makes one of it",
    BASELINE_FORMAT: "'gpuscale baseline show' shows it, 'gpuscale compare' takes it first, and "
    "'gpuscale report' after --baseline",
}
_TABLE = "a table (CSV, Markdown) becomes a baseline by 'gpuscale baseline import'"
_HEAD = 200
_PACKAGES = re.compile(r'"packages": \{[^{}]*\}')
_RUN_FIELDS = {"configuration", "gpus"}


def encode_header(results: Results) -> str:
    """Encode a header as one line, without line break; raise a `DecodeError` if it is invalid."""
    return _with_envelope(to_json(msgspec.structs.replace(results, runs=())), RESULTS_FORMAT)


def encode_run(run: Run) -> str:
    """Encode a run as one line, without line break."""
    line = to_json(run)
    if len(line) > LONGEST_LINE:
        raise DecodeError("", f"a line of {len(line)} characters; at most {LONGEST_LINE} are read")
    return line


def encode_baseline(baseline: Baseline) -> str:
    """Encode a baseline as the text of its file: indented, with one line for each run.

    The packages of an environment are one line too.
    """
    head = to_json(msgspec.structs.replace(baseline, runs=()))
    text = msgspec.json.format(_with_envelope(head, BASELINE_FORMAT), indent=2)
    # A hundred packages of each allocation would bury what people read here.
    text = _PACKAGES.sub(lambda found: re.sub(r"\n *", "", found[0]), text)
    if baseline.runs:
        lines = ",\n".join(f"    {to_json(run)}" for run in baseline.runs)
        text = f'{text[:-2]},\n  "runs": [\n{lines}\n  ]\n}}'
    decode_baseline(text)
    return f"{text}\n"


def decode_results(text: str) -> Results:
    """Decode the text of a results file."""
    written = text.rstrip()
    if not written:
        raise DecodeError("", "the file is empty: nothing was recorded; measure again")
    lines = written.split("\n")
    unended = None if "\n" in text[len(written) :] else len(lines)
    header = _decode_header(text, lines[0], cut_short=unended == 1)
    runs = []
    for number, line in enumerate(lines[1:], start=2):
        run = _decode_run(line, number, cut_short=number == unended)
        if run.configuration.device != header.environment.device:
            problem = (
                f"measured on '{run.configuration.device}', but the header says "
                f"'{header.environment.device}'; correct one of the two"
            )
            raise DecodeError("configuration.device", problem, line=number)
        runs.append(run)
    return Results(**msgspec.structs.asdict(header), runs=tuple(runs))


def decode_baseline(text: str) -> Baseline:
    """Decode the text of a baseline file."""
    if not text.strip():
        raise DecodeError("", "the file is empty; docs/format.md describes a baseline")
    content = _open_envelope(text, BASELINE_FORMAT)
    # Runs are long and never written by hand, so they are not searched for repeated keys.
    by_hand = text.replace(_text(content["runs"]), "[]", 1) if "runs" in content else text
    validate_unique_keys(by_hand)
    baseline = from_json(Baseline, _text(content))
    if not baseline.published and not baseline.runs:
        raise DecodeError("", "expected entries in 'published' or 'runs', found none")
    return baseline


def decode_any(text: str) -> Results | Baseline:
    """Decode a text as a results file or a baseline, depending on the content."""
    if not text.strip():
        raise DecodeError("", "the file is empty; give a results file or a baseline")
    return decode_results(text) if _format_of(text) == RESULTS_FORMAT else decode_baseline(text)


def schema(format_name: str) -> dict[str, Any]:
    """Return the JSON Schema of a baseline, or of the lines (header, run) of a results file."""
    records = [Baseline] if format_name == BASELINE_FORMAT else [Header, Run]
    found, definitions = msgspec.json.schema_components(records)
    return {**(found[0] if len(found) == 1 else {"anyOf": found}), "$defs": definitions}


def _format_of(text: str) -> str | None:
    """Return the format that a text declares, even if it is damaged; None without a declaration."""
    # A results file declares its format in the first line, a baseline anywhere in one document.
    for candidate in (text.partition("\n")[0], text):
        with suppress(DecodeError):
            fields = _fields(candidate)
            if "format" in fields:
                return _text(fields["format"]).strip('"')
            # The first line was lost.
            if fields.keys() >= _RUN_FIELDS:
                return RESULTS_FORMAT
    return next((name for name in _KIND if f'"{name}"' in text[:_HEAD]), None)


def _with_envelope(encoded: str, format_name: str) -> str:
    return f'{{"format":"{format_name}","version":{VERSION},{encoded[1:]}'


def _open_envelope(text: str, wanted: str) -> dict[str, msgspec.Raw]:
    """Check the `format` and `version` of a file's text, and return the other fields."""
    try:
        content = _fields(text)
    except DecodeError as error:
        if declared := _format_of(text):
            _validate_format(declared, wanted)
        if text.lstrip()[:1] not in "{[\ufeff" and not is_json(text):
            raise DecodeError("", f"this is not JSON, so not {_KIND[wanted]}; {_TABLE}") from None
        raise error from None
    found = content.pop("format", None)
    _validate_format(None if found is None else from_json(object, _text(found)), wanted, content)
    if "version" not in content:
        raise DecodeError("", f"missing field 'version'; this gpuscale reads version {VERSION}")
    version = from_json(object, _text(content.pop("version")))
    if isinstance(version, int) and version > VERSION:
        problem = f"version {shown(version)} is newer than this gpuscale ({VERSION})"
        raise DecodeError("version", f"{problem}; upgrade gpuscale")
    if version != VERSION:
        raise DecodeError("version", f"expected {VERSION}, found {shown(version)}")
    return content


def _validate_format(found: object, wanted: str, fields: Mapping[str, object] = {}) -> None:
    if found == wanted:
        return
    if isinstance(found, str) and found in _KIND:
        raise DecodeError("", f"this is {_KIND[found]}, not {_KIND[wanted]}; {_USE[found]}")
    if {"machine_info", "benchmarks"} <= fields.keys():
        problem = f"this is a pytest-benchmark file, not {_KIND[wanted]}"
        raise DecodeError("", f"{problem}; gpuscale's own files lie in .gpuscale/results")
    if found is None and wanted == RESULTS_FORMAT and fields.keys() >= _RUN_FIELDS:
        problem = "this results file has no header: its first line is a run already"
        raise DecodeError("", f"{problem}; put the header back (docs/format.md describes it)")
    if found is None:
        problem = f"this is not {_KIND[wanted]}: it has no field 'format'"
        raise DecodeError("", f"{problem}; docs/format.md describes one")
    raise DecodeError("format", f"expected '{wanted}', found {shown(found)}")


def _decode_header(text: str, line: str, *, cut_short: bool) -> Header:
    try:
        return from_json(Header, _text(_open_envelope(line, RESULTS_FORMAT)))
    except DecodeError as error:
        if not is_json(line):
            if cut_short and _format_of(text) == RESULTS_FORMAT:
                problem = "the header is cut short (was the job killed while writing it?)"
                problem = f"{problem}; no run was recorded, measure again"
                raise DecodeError("", problem, line=1) from None
            if declared := _format_of(text):
                _validate_format(declared, RESULTS_FORMAT)
        raise DecodeError(error.place, error.problem, line=1) from None


def _decode_run(line: str, number: int, *, cut_short: bool) -> Run:
    if not line.strip():
        raise DecodeError("", "the line is empty; delete it", line=number)
    if len(line) > LONGEST_LINE:
        problem = f"longer than {LONGEST_LINE} characters; gpuscale writes no such line, delete it"
        raise DecodeError("", problem, line=number)
    try:
        run = from_json(Run, line)
    except DecodeError as error:
        place, problem = error.place, error.problem
        if cut_short and not is_json(line):
            runs = f"{number - 2} run{'s' if number > 3 else ''}"
            remedy = f"delete it to use the {runs} before it, or go on with --resume"
            remedy = remedy if number > 2 else "it was the first run, so measure again"
            place = ""
            problem = f"the line is cut short (was the job killed while writing it?); {remedy}"
        elif error.key == "format":
            place = ""
            problem = "a second header; a file holds one invocation, so split it before this line"
        elif not is_json(line):
            problem = f"{problem}; delete the line to use the others"
        raise DecodeError(place, problem, line=number) from None
    if run.failure is None and not run.is_valid:
        metric = run.configuration.metric
        wanted = STEP_TIME if metric is None else metric.name
        problem = f"a run without failure has a {wanted}; give it, or say in 'failure' why not"
        raise DecodeError("measured", problem, line=number)
    return run


def _fields(text: str) -> dict[str, msgspec.Raw]:
    return from_json(dict[str, msgspec.Raw], text)


def _text(fields: Mapping[str, msgspec.Raw] | msgspec.Raw) -> str:
    return msgspec.json.encode(fields).decode()
