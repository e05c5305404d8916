"""Records to text and back: the results format and the baseline format, both versioned.

Everything here works on text and raises `DecodeError` with the place of the problem, in words;
msgspec checks the records' own bounds. docs/format.md describes both formats.

Version 2: one record of a run in both formats. Version 1 was never released and is not read.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from gpuscale.encoding import from_json, is_json, parsed, to_json
from gpuscale.errors import DecodeError
from gpuscale.printable import shown
from gpuscale.records import Baseline, Environment, Results, Run
from gpuscale.records.record import Moment, Name, Record
from gpuscale.store.positions import line_of, line_of_repeated_key, whole_number

RESULTS_FORMAT = "gpuscale-results"
BASELINE_FORMAT = "gpuscale-baseline"
VERSION = 2
LONGEST_LINE = 32 * 1024 * 1024
"""Characters in a line; a run on 4096 GPUs with 50 windows takes about a sixth of it."""

_KIND = {RESULTS_FORMAT: "a results file", BASELINE_FORMAT: "a baseline"}
_USE = {
    RESULTS_FORMAT: "give it after the baseline: gpuscale compare BASELINE RESULTS",
    BASELINE_FORMAT: "give it first: gpuscale compare BASELINE RESULTS",
}
_HEAD = 200


class Header(Record, frozen=True, kw_only=True):
    """The first line of a results file, without its format and version."""

    created_at: Moment
    gpuscale_version: Name
    environment: Environment
    injections: tuple[Name, ...] = ()


def encode_header(header: Header) -> str:
    """The first line of a results file, without its line break, where it can be read back."""
    return _with_envelope(to_json(header), RESULTS_FORMAT)


def encode_run(run: Run) -> str:
    """The line of one run, without its line break."""
    line = to_json(run)
    if len(line) > LONGEST_LINE:
        raise DecodeError("", f"a line of {len(line)} characters; at most {LONGEST_LINE} are read")
    return line


def encode_baseline(baseline: Baseline) -> str:
    """The text of a baseline file, indented for people, with a line for each run."""
    head = to_json(msgspec.structs.replace(baseline, runs=()))
    text = msgspec.json.format(_with_envelope(head, BASELINE_FORMAT), indent=2)
    if baseline.runs:
        lines = ",\n".join(f"    {to_json(run)}" for run in baseline.runs)
        text = f'{text[:-2]},\n  "runs": [\n{lines}\n  ]\n}}'
    decode_baseline(text)
    return f"{text}\n"


def decode_results(text: str) -> Results:
    """The results that the text of a results file stands for.

    Raises:
        DecodeError: with line and place, such as `line 7: windows[0].time_s`.
    """
    lines = text.split("\n")
    ended = False
    while lines and not lines[-1].strip():
        lines.pop()
        ended = True
    if not lines:
        raise DecodeError("", "the file is empty: nothing was recorded; measure again")
    header = _decode_header(text, lines[0], cut_short=len(lines) == 1 and not ended)
    runs = []
    for number, line in enumerate(lines[1:], start=2):
        run = _decode_run(line, number, cut_short=number == len(lines) and not ended)
        if run.configuration.device != header.environment.device:
            problem = (
                f"measured on '{run.configuration.device}', but the header says "
                f"'{header.environment.device}'; correct one of the two"
            )
            raise DecodeError("configuration.device", problem, line=number)
        runs.append(run)
    return Results(**msgspec.structs.asdict(header), runs=tuple(runs))


def decode_baseline(text: str) -> Baseline:
    """The baseline that the text of a baseline file stands for.

    Raises:
        DecodeError: with line and place, such as `line 42: runs[2].measured`.
    """
    if not text.strip():
        raise DecodeError("", "the file is empty; docs/format.md describes a baseline")
    try:
        content = _open_envelope(text, BASELINE_FORMAT)
        _refuse_repeated_keys(text, content.get("runs"))
        baseline = from_json(Baseline, _joined(content))
    except DecodeError as error:
        if error.line is not None or (not error.place and error.key is None):
            raise
        line = line_of(text, error.place, error.key)
        raise DecodeError(error.place, error.problem, line=line, key=error.key) from None
    if not baseline.published and not baseline.runs:
        raise DecodeError("", "expected entries in 'published' or 'runs', found none")
    return baseline


def format_of(text: str) -> str | None:
    """The format that a text declares, also where the text is damaged; None where it does not.

    A results file declares it in its first line, a baseline anywhere in one JSON document.
    """
    for candidate in (text.partition("\n")[0], text):
        try:
            declared = _raw(candidate).get("format")
        except DecodeError:
            continue
        if declared is not None:
            return bytes(declared).decode().strip('"')
    return next((name for name in _KIND if f'"{name}"' in text[:_HEAD]), None)


def schema(format_name: str) -> dict[str, Any]:
    """The JSON Schema of a baseline, or of the header and of a run line of a results file."""
    if format_name == BASELINE_FORMAT:
        (reference,), definitions = msgspec.json.schema_components([Baseline])
        return {"$ref": reference["$ref"], "$defs": definitions}
    (header, run), definitions = msgspec.json.schema_components([Header, Run])
    return {"anyOf": [header, run], "$defs": definitions}


def _with_envelope(encoded: str, format_name: str) -> str:
    return f'{{"format":"{format_name}","version":{VERSION},{encoded[1:]}'


def _open_envelope(text: str, wanted: str) -> dict[str, msgspec.Raw]:
    """The fields of a file of the wanted format, without `format` and `version`."""
    try:
        content = _raw(text)
    except DecodeError as error:
        declared = format_of(text)
        if declared is not None:
            _refuse_format(declared, wanted)
        raise error from None
    found = content.pop("format", None)
    _refuse_format(None if found is None else _value(found), wanted, content)
    if "version" not in content:
        raise DecodeError("", f"missing field 'version'; this gpuscale reads version {VERSION}")
    version = _value(content.pop("version"))
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise DecodeError("version", f"expected a whole number from 1, found {shown(version)}")
    if version > VERSION:
        problem = f"version {shown(version)} is newer than this gpuscale ({VERSION})"
        raise DecodeError("version", f"{problem}; upgrade gpuscale")
    if version < VERSION:
        problem = f"version {version} was never released; this gpuscale reads version {VERSION}"
        raise DecodeError("version", f"{problem}, so measure or record anew")
    return content


def _refuse_format(found: object, wanted: str, fields: Mapping[str, object] = {}) -> None:
    if found == wanted:
        return
    if isinstance(found, str) and found in _KIND:
        raise DecodeError("", f"this is {_KIND[found]}, not {_KIND[wanted]}; {_USE[found]}")
    if {"machine_info", "benchmarks"} <= fields.keys():
        problem = f"this is a pytest-benchmark file, not {_KIND[wanted]}"
        raise DecodeError("", f"{problem}; gpuscale's own files lie in .gpuscale/results")
    if found is None:
        problem = f"this is not {_KIND[wanted]}: it has no field 'format'"
        raise DecodeError("", f"{problem}; docs/format.md describes one")
    raise DecodeError("format", f"expected '{wanted}', found {shown(found)}")


def _decode_header(text: str, line: str, *, cut_short: bool) -> Header:
    try:
        return from_json(Header, _joined(_open_envelope(line, RESULTS_FORMAT)))
    except DecodeError as error:
        if cut_short and not is_json(line) and format_of(text) == RESULTS_FORMAT:
            problem = "the header is cut short (was the job killed while writing it?)"
            raise DecodeError(
                "", f"{problem}; no run was recorded, measure again", line=1
            ) from None
        declared = format_of(text)
        if not is_json(line) and declared is not None:
            _refuse_format(declared, RESULTS_FORMAT)
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
        if cut_short and not is_json(line):
            problem = "the line is cut short (was the job killed while writing it?)"
            remedy = "it was the first run, so measure again"
            if number > 2:
                runs = f"{number - 2} run{'s' if number > 3 else ''}"
                remedy = f"delete it to use the {runs} before it, or go on with pytest --resume"
            raise DecodeError("", f"{problem}; {remedy}", line=number) from None
        if error.key == "format":
            problem = "a second header; a file holds one invocation, so split it before this line"
            raise DecodeError("", problem, line=number) from None
        remedy = "" if is_json(line) else "; delete the line to use the others"
        raise DecodeError(error.place, f"{error.problem}{remedy}", line=number) from None
    if run.failure is None and not run.is_valid:
        problem = "a run without failure has a step_time_s; give it, or say in 'failure' why not"
        raise DecodeError("measured", problem, line=number)
    return run


def _raw(text: str) -> dict[str, msgspec.Raw]:
    return from_json(dict[str, msgspec.Raw], text)


def _joined(content: Mapping[str, msgspec.Raw]) -> str:
    fields = (json.dumps(name).encode() + b":" + bytes(raw) for name, raw in content.items())
    return (b"{" + b",".join(fields) + b"}").decode()


def _value(raw: msgspec.Raw) -> object:
    return from_json(object, bytes(raw).decode())


def _refuse_repeated_keys(text: str, runs: msgspec.Raw | None) -> None:
    """Refuses an object with a key twice, as careless hands leave it; runs no hand writes."""
    head = text if runs is None else text.replace(bytes(runs).decode(), "[]", 1)

    def unique(pairs: list[tuple[str, object]]) -> None:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            name = next(name for i, name in enumerate(names) if name in names[:i])
            found = shown(name).removeprefix("text ")
            line = line_of_repeated_key(text)
            raise DecodeError("", f"the field {found} stands twice in one object", line=line)

    parsed(head, object_pairs_hook=unique, parse_int=whole_number)
