"""Encode and decode results files and baseline files (docs/format.md)."""

import re
from typing import Any

import msgspec

from gpuscale.base.errors import DecodeError
from gpuscale.base.host import UNRECORDED
from gpuscale.records import Baseline, Results, Run
from gpuscale.records.metrics import STEP_TIME
from gpuscale.records.record import from_json, is_json, to_json, validate_unique_keys
from gpuscale.records.run import Header

RESULTS_FORMAT = "gpuscale-results"
BASELINE_FORMAT = "gpuscale-baseline"
VERSION = 2
_KIND = {RESULTS_FORMAT: "a results file", BASELINE_FORMAT: "a baseline"}
_USE = {
    RESULTS_FORMAT: "'gpuscale baseline record' makes a baseline of it",
    BASELINE_FORMAT: "'gpuscale compare' takes it first, and 'gpuscale report' after --baseline",
}
_HEAD = 200
_NULL = msgspec.Raw(b"null")
_PACKAGES = re.compile(r'"packages": \{[^{}]*\}')


def encode_header(results: Results) -> str:
    """Encode a results file's header line; raise DecodeError if it could not be read again."""
    head = msgspec.structs.replace(results, runs=(), folder="")
    return _with_envelope(to_json(head), RESULTS_FORMAT)


def encode_baseline(baseline: Baseline) -> str:
    """Encode a baseline as the text of its file; raise a `DecodeError` if it is invalid."""
    head = to_json(msgspec.structs.replace(baseline, runs=()))
    text = msgspec.json.format(_with_envelope(head, BASELINE_FORMAT), indent=2)
    # With a line for each package or number, the parts that people read would be hard to find.
    text = _PACKAGES.sub(lambda found: re.sub(r"\n *", "", found[0]), text)
    if baseline.runs:
        lines = ",\n".join(f"    {to_json(run)}" for run in baseline.runs)
        text = f'{text[:-2]},\n  "runs": [\n{lines}\n  ]\n}}'
    decode_baseline(text)
    return f"{text}\n"


def decode_results(text: str) -> Results:
    """Decode the text of a results file; raise a `DecodeError` that locates any problem."""
    runs = []
    for number, line in enumerate(text.rstrip().split("\n"), start=1):
        try:
            if number == 1:
                header = from_json(Header, _text(_open_envelope(line, RESULTS_FORMAT)))
            else:
                runs.append(_decode_run(line, header))
        except DecodeError as error:
            place, problem = error.place, error.problem
            if number > 1 and not is_json(line):
                place, problem = "", "the line is cut short or damaged (was the job killed?); "
                problem += "delete it to use the other runs, or measure again"
            raise DecodeError(place, problem, line=number) from None
    return Results(**msgspec.structs.asdict(header), runs=tuple(runs))


def _decode_run(line: str, header: Header) -> Run:
    if f'"{RESULTS_FORMAT}"' in line[:_HEAD]:
        problem = "a second header; a file holds one invocation, so split it before this line"
        raise DecodeError("", problem)
    run = from_json(Run, line)
    device = run.configuration.device
    if header.environment.device not in (device, UNRECORDED):
        problem = f"measured on '{device}', but the header says '{header.environment.device}'"
        raise DecodeError("configuration.device", f"{problem}; correct one of the two")
    if run.failure is None and not run.is_valid:
        metric = run.configuration.metric
        wanted = STEP_TIME if metric is None else metric.name
        problem = f"a run without failure has a {wanted}; give it, or say in 'failure' why not"
        raise DecodeError("measured", problem)
    return run


def decode_baseline(text: str) -> Baseline:
    """Decode the text of a baseline file; raise a `DecodeError` that locates any problem."""
    content = _open_envelope(text, BASELINE_FORMAT)
    # Runs are long and never written by hand, so they are not searched for repeated keys.
    by_hand = text.replace(_text(content["runs"]), "[]", 1) if "runs" in content else text
    validate_unique_keys(by_hand)
    baseline = from_json(Baseline, _text(content))
    if not baseline.published and not baseline.runs:
        raise DecodeError("", "expected entries in 'published' or 'runs', found none")
    return baseline


def decode_any(text: str) -> Results | Baseline:
    """Decode a text as a results file or a baseline, depending on the first line."""
    is_results = f'"{RESULTS_FORMAT}"' in text.partition("\n")[0]
    return decode_results(text) if is_results else decode_baseline(text)


def schema(format_name: str) -> dict[str, Any]:
    """Return the JSON Schema of a baseline, or of the lines (header, run) of a results file."""
    records = [Baseline] if format_name == BASELINE_FORMAT else [Header, Run]
    found, definitions = msgspec.json.schema_components(records)
    return {**(found[0] if len(found) == 1 else {"anyOf": found}), "$defs": definitions}


def _with_envelope(encoded: str, format_name: str) -> str:
    return f'{{"format":"{format_name}","version":{VERSION},{encoded[1:]}'


def _open_envelope(text: str, wanted: str) -> dict[str, msgspec.Raw]:
    """Check that a text has the format `wanted` and a known version; return its other fields."""
    if not text.strip():
        raise DecodeError("", "the file is empty; measure again")
    if text.lstrip("\ufeff \t\r\n")[:1] != "{":
        raise DecodeError("", "this is neither a results file nor a baseline (docs/format.md)")
    for other, use in _USE.items():
        if other != wanted and f'"{other}"' in text[:_HEAD]:
            raise DecodeError("", f"this is {_KIND[other]}, not {_KIND[wanted]}; {use}")
    content = from_json(dict[str, msgspec.Raw], text)
    found, version = (
        from_json(object, _text(content.pop(name, _NULL))) for name in ("format", "version")
    )
    if found != wanted:
        problem = f"expected '{wanted}'; this is not {_KIND[wanted]} (docs/format.md)"
        raise DecodeError("format", problem)
    if version != VERSION:
        problem = f"expected {VERSION}; read it with the gpuscale that wrote it"
        raise DecodeError("version", problem)
    return content


def _text(fields: dict[str, msgspec.Raw] | msgspec.Raw) -> str:
    return msgspec.json.encode(fields).decode()
