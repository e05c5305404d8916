"""The results format: JSON Lines, a header with the environment and then one line a run."""

import json
from dataclasses import dataclass

from gpuscale.errors import DecodeError
from gpuscale.formats import checks
from gpuscale.formats.checks import check_device, each, expected_ranks, within
from gpuscale.formats.decode import Decoder, Rules
from gpuscale.formats.encode import encode
from gpuscale.formats.envelope import (
    RESULTS_FORMAT,
    VERSION,
    format_of,
    open_envelope,
    refuse_format,
)
from gpuscale.formats.json_text import parse_json
from gpuscale.formats.machine import MACHINE_FIELDS
from gpuscale.records import (
    Configuration,
    Environment,
    Failure,
    RankReport,
    Results,
    Run,
    Window,
)

LONGEST_LINE = 32 * 1024 * 1024
"""Characters in a line; a run on 4096 GPUs with 50 windows takes about a sixth of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    created_at: str
    gpuscale_version: str
    environment: Environment
    injections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunLine:
    run: Run


def encode_header(
    *,
    created_at: str,
    gpuscale_version: str,
    environment: Environment,
    injections: tuple[str, ...] = (),
) -> str:
    """The first line of a results file, without its line break.

    Raises:
        DecodeError: the line could not be read back.
    """
    header = _Header(
        created_at=created_at,
        gpuscale_version=gpuscale_version,
        environment=environment,
        injections=injections,
    )
    return _encode_line(header, {"format": RESULTS_FORMAT, "version": VERSION})


def encode_run(run: Run) -> str:
    """The line of one run, without its line break.

    Raises:
        DecodeError: the line could not be read back: a value breaks the format's rules.
    """
    return _encode_line(_RunLine(run=run), {})


def decode_results(text: str) -> Results:
    """The results that the text of a results file stands for.

    Raises:
        DecodeError: with line and place, such as `line 7: run.windows[0].time_s`.
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
        try:
            check_device("run.", run.configuration, header.environment.device, "the header")
        except DecodeError as error:
            raise _at_line(number, error) from None
        runs.append(run)
    return Results(
        created_at=header.created_at,
        gpuscale_version=header.gpuscale_version,
        environment=header.environment,
        injections=header.injections,
        runs=tuple(runs),
    )


def _encode_line(record: _Header | _RunLine, envelope: dict[str, object]) -> str:
    value = encode(record, _RULES)
    assert isinstance(value, dict)
    _DECODER.decode(value, type(record))
    line = json.dumps(envelope | value, allow_nan=False)
    if len(line) > LONGEST_LINE:
        raise DecodeError("", f"a line of {len(line)} characters; at most {LONGEST_LINE} are read")
    return line


def _decode_header(text: str, line: str, *, cut_short: bool) -> _Header:
    try:
        value = _parse_line(line, 1)
    except DecodeError as error:
        declared = format_of(text)
        if declared is not None:
            refuse_format(declared, RESULTS_FORMAT)
        if cut_short and declared == RESULTS_FORMAT:
            problem = "the header is cut short (was the job killed while writing it?)"
            remedy = "no run was recorded, measure again"
            raise DecodeError("", f"{problem}; {remedy}", line=1) from None
        raise error from None
    try:
        return _DECODER.decode(open_envelope(value, RESULTS_FORMAT), _Header)
    except DecodeError as error:
        raise _at_line(1, error) from None


def _decode_run(line: str, number: int, *, cut_short: bool) -> Run:
    try:
        value = _parse_line(line, number)
    except DecodeError as error:
        if cut_short:
            raise _cut_short(number) from None
        raise error from None
    if isinstance(value, dict) and "format" in value:
        problem = "a second header; a file holds one invocation, so split it before this line"
        raise DecodeError("", problem, line=number)
    try:
        return _DECODER.decode(value, _RunLine).run
    except DecodeError as error:
        raise _at_line(number, error) from None


def _parse_line(line: str, number: int) -> object:
    if not line.strip():
        raise DecodeError("", "the line is empty; delete it", line=number)
    if len(line) > LONGEST_LINE:
        problem = f"longer than {LONGEST_LINE} characters; gpuscale writes no such line, delete it"
        raise DecodeError("", problem, line=number)
    return parse_json(line, line=number)


def _cut_short(number: int) -> DecodeError:
    problem = "the line is cut short (was the job killed while writing it?)"
    before = number - 2
    if before == 0:
        remedy = "it was the first run, so measure again"
    else:
        runs = f"{before} run{'s' if before > 1 else ''}"
        remedy = f"delete it to use the {runs} before it, or go on with pytest --resume"
    return DecodeError("", f"{problem}; {remedy}", line=number)


def _at_line(number: int, error: DecodeError) -> DecodeError:
    return DecodeError(error.place, error.problem, line=number)


def _check_run(run: Run) -> None:
    numbers = [report.rank for report in run.ranks]
    expected = expected_ranks(run)
    if len(set(numbers)) < len(numbers) or any(rank >= expected for rank in numbers):
        problem = f"expected each of the ranks 0 to {expected - 1} once, found {numbers[:20]}"
        raise DecodeError("ranks", problem)
    if run.windows and run.steps_per_window is None:
        raise DecodeError("steps_per_window", "a run with windows says how many steps each had")
    for position, summary in enumerate(run.gpu_summaries):
        if len(summary.windows) not in (0, len(run.windows)):
            problem = f"expected one for each of the run's {len(run.windows)} windows, or none"
            raise DecodeError(
                f"gpu_summaries[{position}].windows", f"{problem}; found {len(summary.windows)}"
            )
    if run.failure is None:
        _check_finished_run(run, expected)


def _check_finished_run(run: Run, expected: int) -> None:
    remedy = "or say in 'failure' why there is no result"
    if not run.windows:
        raise DecodeError("windows", f"a run without failure has windows; give them, {remedy}")
    if [report.rank for report in run.ranks] != list(range(expected)):
        problem = (
            f"{run.configuration.strategy} on {run.gpus} GPUs has the ranks 0 to {expected - 1}"
        )
        raise DecodeError("ranks", f"{problem}; give all of them in order, {remedy}")
    for name, windows in (("windows", run.windows), ("unsynced_windows", run.unsynced_windows)):
        for position, window in enumerate(windows):
            found = len(window.busy_s)
            if found != expected:
                problem = f"expected a number for each of {expected} ranks, found {found}"
                raise DecodeError(f"{name}[{position}].busy_s", problem)
    for report in run.ranks:
        if report.parameter_digest != run.ranks[0].parameter_digest:
            problem = (
                "its parameters differ from those of rank 0, so the ranks did not train together"
            )
            raise DecodeError(
                f"ranks[{report.rank}].parameter_digest",
                f"{problem}; such a run has a 'failure' of kind 'invalid'",
            )
        if report.final_loss is None:
            raise DecodeError(
                f"ranks[{report.rank}].final_loss",
                "a run whose loss is not finite has a 'failure' of kind 'invalid'",
            )


_RULES = Rules(
    fields={
        **MACHINE_FIELDS,
        _Header: {
            "created_at": checks.moment,
            "gpuscale_version": checks.name,
            "injections": each(checks.name),
        },
        Configuration: checks.CONFIGURATION,
        Window: {
            "time_s": checks.seconds,
            "started_at_s": checks.unix_time,
            "busy_s": each(checks.seconds),
        },
        RankReport: {
            "rank": checks.number_of_device,
            "local_rank": checks.number_of_device,
            "host": checks.name,
            "devices": each(checks.number_of_device),
            "parameter_digest": checks.name,
            "final_loss": within(-1e300, 1e300, "a loss"),
            "peak_memory_bytes": checks.size_bytes,
            "peak_host_memory_bytes": checks.size_bytes,
            "pace_s": checks.seconds,
        },
        Failure: {"rank": checks.number_of_device},
        Run: {
            "gpus": checks.gpus,
            "index": checks.positive_count,
            "started_at_s": checks.unix_time,
            "batch_per_gpu": checks.batch,
            "sample_shape": checks.sample_shape,
            "steps_per_window": checks.positive_count,
            "warmup_steps": checks.count,
            "warmup_s": checks.duration,
            "startup_s": checks.duration,
            "wall_s": checks.duration,
        },
    },
    records={Run: _check_run},
    multiline=frozenset({(Failure, "detail")}),
)
_DECODER = Decoder(_RULES)
