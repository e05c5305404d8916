"""What every gpuscale file says first: which format it is, and which version of it."""

from gpuscale.errors import DecodeError
from gpuscale.formats.json_text import parse_json
from gpuscale.formats.text import shown

RESULTS_FORMAT = "gpuscale-results"
BASELINE_FORMAT = "gpuscale-baseline"
VERSION = 1
"""The version of both formats that this gpuscale reads and writes."""

_KIND = {RESULTS_FORMAT: "a results file", BASELINE_FORMAT: "a baseline"}
_USE = {
    RESULTS_FORMAT: "give it after the baseline: gpuscale compare BASELINE RESULTS",
    BASELINE_FORMAT: "give it first: gpuscale compare BASELINE RESULTS",
}
_HEAD = 200


def open_envelope(value: object, wanted: str) -> dict[str, object]:
    """The fields of a file of the wanted format, without `format` and `version`.

    Raises:
        DecodeError: another format, none at all, or a version that this gpuscale cannot read.
    """
    if not isinstance(value, dict):
        raise DecodeError("", f"expected {_KIND[wanted]}, an object, found {shown(value)}")
    refuse_format(value.get("format"), wanted, value)
    if "version" not in value:
        raise DecodeError("", f"missing field 'version'; this gpuscale reads version {VERSION}")
    version = value["version"]
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise DecodeError("version", f"expected a whole number from 1, found {shown(version)}")
    if version > VERSION:
        raise DecodeError(
            "version",
            f"version {shown(version)} is newer than this gpuscale ({VERSION}); upgrade gpuscale",
        )
    return {name: item for name, item in value.items() if name not in ("format", "version")}


def refuse_format(found: object, wanted: str, fields: object = None) -> None:
    """Raises for a declared format that is not the wanted one, and says what to do with it.

    Raises:
        DecodeError: naming what the file is, as far as it can be told.
    """
    if found == wanted:
        return
    if isinstance(found, str) and found in _KIND:
        raise DecodeError("", f"this is {_KIND[found]}, not {_KIND[wanted]}; {_USE[found]}")
    if isinstance(fields, dict) and {"machine_info", "benchmarks"} <= fields.keys():
        problem = f"this is a pytest-benchmark file, not {_KIND[wanted]}"
        raise DecodeError("", f"{problem}; gpuscale's own files lie in .gpuscale/results")
    if found is None:
        problem = f"this is not {_KIND[wanted]}: it has no field 'format'"
        raise DecodeError("", f"{problem}; docs/format.md describes one")
    raise DecodeError("format", f"expected '{wanted}', found {shown(found)}")


def format_of(text: str) -> str | None:
    """The format that a text declares, also where the text is damaged; None where it does not.

    A results file declares it in its first line, a baseline anywhere in one JSON document.
    """
    for candidate in (text.partition("\n")[0], text):
        try:
            value = parse_json(candidate)
        except DecodeError:
            continue
        if isinstance(value, dict) and isinstance(value.get("format"), str):
            return str(value["format"])
    return next((name for name in _KIND if f'"{name}"' in text[:_HEAD]), None)
