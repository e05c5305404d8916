"""The baseline format: one JSON document with published figures, measured runs, or both."""

import json

from gpuscale.errors import DecodeError
from gpuscale.formats import checks
from gpuscale.formats.checks import check_device, each, no_duplicates, within
from gpuscale.formats.decode import Decoder, Rules
from gpuscale.formats.encode import encode
from gpuscale.formats.envelope import (
    BASELINE_FORMAT,
    VERSION,
    format_of,
    open_envelope,
    refuse_format,
)
from gpuscale.formats.json_text import parse_json
from gpuscale.formats.machine import MACHINE_FIELDS
from gpuscale.formats.positions import line_of
from gpuscale.records import (
    Baseline,
    BaselineChange,
    Configuration,
    Hardware,
    MeasuredEntry,
    MeasuredRun,
    PublishedFigure,
    RankEvidence,
    RunEvidence,
    Source,
    ToleranceOverride,
    Tolerances,
)


def encode_baseline(baseline: Baseline) -> str:
    """The text of a baseline file, indented for people and version control.

    Raises:
        DecodeError: the text could not be read back: a value breaks the format's rules.
    """
    value = encode(baseline, _RULES)
    assert isinstance(value, dict)
    _DECODER.decode(value, Baseline)
    document = {"format": BASELINE_FORMAT, "version": VERSION} | value
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def decode_baseline(text: str) -> Baseline:
    """The baseline that the text of a baseline file stands for.

    Raises:
        DecodeError: with line and place, such as `line 42: measured[2].runs[0].step_time_s`.
    """
    if not text.strip():
        raise DecodeError("", "the file is empty; docs/format.md describes a baseline")
    try:
        value = parse_json(text)
    except DecodeError as error:
        declared = format_of(text)
        if declared is not None:
            refuse_format(declared, BASELINE_FORMAT)
        raise error from None
    try:
        return _DECODER.decode(open_envelope(value, BASELINE_FORMAT), Baseline)
    except DecodeError as error:
        raise _with_line(error, text) from None


def _with_line(error: DecodeError, text: str) -> DecodeError:
    if not error.place and error.key is None:
        return error
    line = line_of(text, error.place, error.key)
    return DecodeError(error.place, error.problem, line=line, key=error.key)


def _check_figure(figure: PublishedFigure) -> None:
    times = len(figure.times_s)
    if (times > 0) == (figure.samples_per_s is not None):
        raise DecodeError("", "expected exactly one of 'times_s' and 'samples_per_s'")
    if (times > 0) != (figure.timed is not None):
        problem = "'timed' says what 'times_s' spans: give it with times, and only with them"
        raise DecodeError("timed", problem)
    if figure.discard_first and figure.discard_first >= times:
        problem = (
            f"{figure.discard_first} of {times} times are discarded; at least one must be left"
        )
        raise DecodeError("discard_first", problem)
    if figure.nodes > figure.gpus:
        raise DecodeError("nodes", f"{figure.gpus} GPUs cannot lie on {figure.nodes} nodes")


def _check_hardware(hardware: Hardware) -> None:
    if hardware.device == "cpu" and hardware.gpu_name is not None:
        problem = "a machine of device 'cpu' has no GPU; remove this field or say 'cuda'"
        raise DecodeError("gpu_name", problem)


def _check_entry(entry: MeasuredEntry) -> None:
    if not entry.runs:
        raise DecodeError("runs", "an entry without runs says nothing; remove it")


def _check_override(override: ToleranceOverride) -> None:
    if not any(condition is not None for condition in override.conditions):
        problem = "an override for everything; set the limits in 'tolerances' itself"
        raise DecodeError("", problem)
    limits = (override.margin, override.ok_bound, override.allocation_deviation)
    if all(limit is None for limit in limits):
        names = "'margin', 'ok_bound' or 'allocation_deviation'"
        raise DecodeError("", f"an override that sets no limit; give {names}, or remove it")


def _check_tolerances(tolerances: Tolerances) -> None:
    no_duplicates(
        "overrides",
        [override.conditions for override in tolerances.overrides],
        "put their limits into one",
    )


def _check_baseline(baseline: Baseline) -> None:
    if not baseline.published and not baseline.measured:
        raise DecodeError("", "expected entries in 'published' or 'measured', found none")
    if baseline.published and baseline.source is None:
        raise DecodeError("", "published figures need a 'source'; name where they come from")
    _check_nodes(baseline)
    no_duplicates(
        "published",
        [figure.key for figure in baseline.published],
        "keep one, or name the cases apart",
    )
    for position, entry in enumerate(baseline.measured):
        place = f"measured[{position}]."
        check_device(place, entry.configuration, baseline.hardware.device, "hardware")
    no_duplicates(
        "measured",
        [(entry.configuration, entry.gpus) for entry in baseline.measured],
        "put all their runs into one",
    )


def _check_nodes(baseline: Baseline) -> None:
    per_node = baseline.hardware.gpus_per_node
    for position, figure in enumerate(baseline.published):
        if per_node is not None and figure.gpus > figure.nodes * per_node:
            nodes = f"{figure.nodes} node{'' if figure.nodes == 1 else 's'}"
            problem = f"{figure.gpus} GPUs do not fit on {nodes} of {per_node}; correct 'nodes'"
            raise DecodeError(f"published[{position}].nodes", problem)


_margin = within(0, 0.99, "a fraction")
_ok_bound = within(1e-6, 0.99, "a fraction")
_deviation = within(0, 0.99, "a relative deviation")
_RULES = Rules(
    fields={
        **MACHINE_FIELDS,
        Baseline: {
            "name": checks.name,
            "cluster": checks.name,
            "recorded_at": checks.moment,
            "recorded_by": checks.name,
            "gpuscale_version": checks.name,
            "expires_on": checks.day,
        },
        BaselineChange: {
            "at": checks.moment,
            "reason": checks.sentence,
            "by": checks.name,
            "added": each(checks.sentence),
        },
        Hardware: {"gpu_name": checks.name, "gpus_per_node": checks.gpus},
        Source: {"title": checks.name},
        PublishedFigure: {
            "case": checks.name,
            "strategy": checks.name,
            "gpus": checks.gpus,
            "batch_per_gpu": checks.batch,
            "runs": checks.positive_count,
            "nodes": checks.gpus,
            "times_s": each(checks.seconds),
            "discard_first": checks.count,
            "samples_per_s": checks.samples_per_s,
        },
        Configuration: checks.CONFIGURATION,
        MeasuredEntry: {
            "gpus": checks.gpus,
            "batch_per_gpu": checks.batch,
            "sample_shape": checks.sample_shape,
        },
        MeasuredRun: {
            "step_time_s": within(1e-18, 1e9, "a time in seconds"),
            "allocation": checks.name,
        },
        RunEvidence: {
            "exposed_communication_s": within(-1e9, 1e9, "a time in seconds"),
            "peak_memory_bytes": checks.size_bytes,
            "energy_per_sample_j": within(0, 1e15, "an energy in joules"),
        },
        RankEvidence: {
            "rank": checks.number_of_device,
            "host": checks.name,
            "pace_s": checks.seconds,
        },
        Tolerances: {
            "margin": _margin,
            "ok_bound": _ok_bound,
            "allocation_deviation_time": _deviation,
            "allocation_deviation_speedup": _deviation,
            "published_within_node": _margin,
            "published_across_nodes": _margin,
        },
        ToleranceOverride: {
            "case": checks.name,
            "gpus": checks.gpus,
            "margin": _margin,
            "ok_bound": _ok_bound,
            "allocation_deviation": _deviation,
        },
    },
    records={
        PublishedFigure: _check_figure,
        Hardware: _check_hardware,
        MeasuredEntry: _check_entry,
        ToleranceOverride: _check_override,
        Tolerances: _check_tolerances,
        Baseline: _check_baseline,
    },
)
_DECODER = Decoder(_RULES)
