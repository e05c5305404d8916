"""Whatever a file holds, it is read or refused in one line; what is written is read back."""

import json
import math
import re
from collections.abc import Callable, Iterator
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuscale.errors import FileError
from gpuscale.formats import (
    decode_baseline,
    decode_results,
    encode_baseline,
    encode_header,
    encode_run,
)
from gpuscale.records import (
    Baseline,
    Configuration,
    Environment,
    Failure,
    FailureKind,
    GpuDevice,
    GpuSummary,
    Hardware,
    MeasuredEntry,
    MeasuredRun,
    PublishedFigure,
    RankReport,
    Results,
    Run,
    Source,
    Tolerances,
    Window,
)
from gpuscale.records.baseline import Timed
from gpuscale.records.configuration import DataKind, Device, Precision, ScalingMode, Strategy
from gpuscale.store import read_any, read_baseline, read_results

PAGE = (Path(__file__).parent.parent / "docs" / "format.md").read_text(encoding="utf-8")
READERS: tuple[Callable[[Path], object], ...] = (read_results, read_baseline, read_any)

modest = settings(
    derandomize=True,
    max_examples=150,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


# Valid records.

BIDIRECTIONAL = [*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))]
printable = st.characters(
    exclude_categories=["Cc", "Cs", "Zl", "Zp"], exclude_characters=BIDIRECTIONAL
)
lines_of_text = st.text(printable, max_size=20)
details = st.text(printable | st.sampled_from("\n\t"), max_size=20)
names = lines_of_text.map(lambda text: text.strip() or "x")
seconds = st.floats(1e-9, 1e9)
durations = st.floats(0, 1e9)
unix_times = st.floats(0, 1e11)
sizes_bytes = st.integers(0, 2**60)
batches = st.integers(1, 10**9)
shapes = st.lists(st.integers(1, 10**9), min_size=1, max_size=4).map(tuple)
devices = st.sampled_from(get_args(Device))
offsets = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(timezones=offsets).map(lambda moment: moment.isoformat())


def choice(literal: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(get_args(literal))


def tuples(items: st.SearchStrategy[Any], *, smallest: int = 0) -> st.SearchStrategy[Any]:
    return st.lists(items, min_size=smallest, max_size=3).map(tuple)


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def configurations(device: Device) -> st.SearchStrategy[Configuration]:
    return st.builds(
        Configuration,
        case=names,
        strategy=choice(Strategy),
        device=st.just(device),
        size=names,
        precision=choice(Precision),
        scaling=choice(ScalingMode),
        data=choice(DataKind),
        threads_per_rank=optional(st.integers(1, 10**9)),
        data_workers=optional(st.integers(0, 10**9)),
    )


def environments(device: Device) -> st.SearchStrategy[Environment]:
    gpu = st.builds(
        GpuDevice,
        index=st.integers(0, 10**6),
        name=names,
        uuid=optional(lines_of_text),
        memory_bytes=optional(sizes_bytes),
    )
    return st.builds(
        Environment,
        device=st.just(device),
        host=names,
        cpu_model=optional(lines_of_text),
        cpu_count=optional(st.integers(1, 10**9)),
        gpus=tuples(gpu),
        python_version=lines_of_text,
        torch_version=lines_of_text,
        nccl_version=optional(lines_of_text),
        variables=st.dictionaries(lines_of_text, lines_of_text, max_size=3),
        cases_revision=optional(lines_of_text),
        job_id=optional(lines_of_text),
    )


gpu_summaries = st.builds(
    GpuSummary,
    uuid=names,
    name=optional(lines_of_text),
    samples=st.integers(0, 10**9),
    utilization_mean=optional(st.floats(0, 1)),
    memory_used_peak_bytes=optional(sizes_bytes),
    power_mean_w=optional(st.floats(0, 1e6)),
    sm_clock_mean_mhz=optional(st.floats(0, 1e6)),
    absent=tuples(lines_of_text),
)
failures = st.builds(
    Failure,
    kind=choice(FailureKind),
    message=lines_of_text,
    rank=optional(st.integers(0, 10**6)),
    host=optional(lines_of_text),
    detail=details,
)


@st.composite
def runs(draw: st.DrawFn, device: Device) -> Run:
    configuration = draw(configurations(device))
    gpus = draw(st.integers(1, 4))
    processes = 1 if configuration.strategy == "dp" else gpus
    digest = draw(names)
    failure = draw(optional(failures))
    window = st.builds(
        Window,
        time_s=seconds,
        started_at_s=unix_times,
        busy_s=st.lists(seconds, min_size=processes, max_size=processes).map(tuple),
    )
    ranks = tuple(
        RankReport(
            rank=rank,
            local_rank=rank,
            host=draw(names),
            devices=draw(tuples(st.integers(0, 10**6))),
            device_uuids=draw(tuples(lines_of_text)),
            parameter_digest=digest,
            final_loss=draw(st.floats(-1e300, 1e300)),
            peak_memory_bytes=draw(optional(sizes_bytes)),
            peak_host_memory_bytes=draw(optional(sizes_bytes)),
        )
        for rank in range(processes)
    )
    return Run(
        configuration=configuration,
        gpus=gpus,
        index=draw(st.integers(1, 10**9)),
        started_at_s=draw(unix_times),
        batch_per_gpu=draw(batches),
        sample_shape=draw(shapes),
        steps_per_window=draw(st.integers(1, 10**9)),
        windows=draw(tuples(window, smallest=0 if failure else 1)),
        ranks=ranks if failure is None else draw(st.sampled_from(((), ranks[:1], ranks))),
        warmup_steps=draw(optional(st.integers(0, 10**9))),
        warmup_s=draw(optional(durations)),
        startup_s=draw(optional(durations)),
        wall_s=draw(durations),
        gpu_summaries=draw(tuples(gpu_summaries)),
        telemetry_absent=draw(optional(lines_of_text)),
        failure=failure,
    )


@st.composite
def many_results(draw: st.DrawFn) -> Results:
    device = draw(devices)
    return Results(
        created_at=draw(moments),
        gpuscale_version=draw(names),
        environment=draw(environments(device)),
        runs=draw(tuples(runs(device))),
    )


@st.composite
def figures(draw: st.DrawFn) -> PublishedFigure:
    times = draw(tuples(seconds))
    return PublishedFigure(
        case=draw(names),
        strategy=draw(names),
        gpus=draw(st.integers(1, 10**6)),
        batch_per_gpu=draw(batches),
        runs=draw(st.integers(1, 10**9)),
        times_s=times,
        timed=draw(choice(Timed)) if times else None,
        discard_first=draw(st.integers(0, len(times) - 1)) if times else 0,
        samples_per_s=None if times else draw(st.floats(1e-9, 1e15)),
        note=draw(optional(lines_of_text)),
    )


@st.composite
def baselines(draw: st.DrawFn) -> Baseline:
    device = draw(devices)
    run = st.builds(MeasuredRun, step_time_s=st.floats(1e-18, 1e9), allocation=names)
    entry = st.builds(
        MeasuredEntry,
        configuration=configurations(device),
        gpus=st.integers(1, 10**6),
        batch_per_gpu=batches,
        sample_shape=shapes,
        runs=tuples(run, smallest=1),
    )
    fraction = st.floats(1e-6, 0.99)
    return Baseline(
        name=draw(names),
        cluster=draw(names),
        hardware=Hardware(
            device=device,
            gpu_name=draw(optional(names)) if device == "cuda" else None,
            cpu_model=draw(optional(lines_of_text)),
        ),
        published=tuple(draw(st.lists(figures(), max_size=3, unique_by=lambda f: f.key))),
        measured=tuple(
            draw(
                st.lists(
                    entry,
                    min_size=1,
                    max_size=3,
                    unique_by=lambda e: (e.configuration, e.gpus),
                )
            )
        ),
        source=draw(st.builds(Source, title=names, url=optional(lines_of_text))),
        recorded_at=draw(optional(moments)),
        tolerances=draw(st.builds(Tolerances, margin=fraction, ok_bound=fraction)),
    )


@modest
@given(many_results())
def test_results_that_are_written_are_read_back_unchanged(results: Results) -> None:
    header = encode_header(
        created_at=results.created_at,
        gpuscale_version=results.gpuscale_version,
        environment=results.environment,
    )
    text = "".join(f"{line}\n" for line in (header, *map(encode_run, results.runs)))
    assert decode_results(text) == results
    assert text.count("\n") == 1 + len(results.runs)
    for run in decode_results(text).runs:
        assert not run.is_valid or math.isfinite(run.log_step_time)


@modest
@given(baselines())
def test_a_baseline_that_is_written_is_read_back_unchanged(baseline: Baseline) -> None:
    assert decode_baseline(encode_baseline(baseline)) == baseline


# Invalid files.

VALID = [
    found[1].encode() for found in re.finditer(r"```\w+ (?:results|baseline)\n(.*?)```", PAGE, re.S)
]
RAW = {
    "@deep@": "[" * 5000 + "]" * 5000,
    "@deep object@": '{"a":' * 5000 + "1" + "}" * 5000,
    "@nan@": "NaN",
    "@infinity@": "-Infinity",
    "@overflow@": "1e999",
    "@digits@": "9" * 10_000,
    "@surrogate@": '"\\ud800"',
    "@escape@": '"\\u001b[2J"',
    "@twice@": '{"a": 1, "a": 2}',
}
hostile_values = st.sampled_from(
    [*RAW, None, True, -1, 0, -0.5, 1e308, 10**25, "", "abc", "\0", "x" * 20_000, "\u202e"]
) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(value: Any) -> Iterator[tuple[Any, str | int]]:
    """Every (container, key) inside a JSON value."""
    keys: Any = ()
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        yield value, key
        yield from places(value[key])


@st.composite
def files_with_a_changed_value(draw: st.DrawFn) -> bytes:
    text = draw(st.sampled_from(VALID)).decode()
    documents = [text] if text.startswith("{\n") else text.splitlines()
    position = draw(st.integers(0, len(documents) - 1))
    document = json.loads(documents[position])
    container, key = draw(st.sampled_from(list(places(document))))
    action = draw(st.sampled_from(["replace", "remove", "add", "repeat"]))
    if action == "remove":
        del container[key]
    elif action == "add" and isinstance(container, dict):
        container[draw(st.text(max_size=8))] = draw(hostile_values)
    elif action == "repeat" and isinstance(container, list):
        container.append(container[key])
    else:
        container[key] = draw(hostile_values)
    documents[position] = json.dumps(document)
    text = "\n".join(documents)
    for mark, raw in RAW.items():
        text = text.replace(f'"{mark}"', raw)
    return text.encode()


@st.composite
def files_with_changed_bytes(draw: st.DrawFn) -> bytes:
    content = bytearray(draw(st.sampled_from(VALID)))
    for position in draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[position] = draw(st.integers(0, 255))
    start = draw(st.just(0) | st.integers(0, len(content)))
    end = draw(st.just(len(content)) | st.integers(0, len(content)))
    return bytes(content[start:end])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "file.json"


def assert_read_or_refused_in_one_line(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for read in READERS:
        try:
            read(path)
        except FileError as error:
            message = str(error)
            assert message.startswith(str(path))
            assert message.isprintable()
            assert len(message) < len(str(path)) + 700


@modest
@given(content=files_with_a_changed_value())
def test_a_changed_value_is_read_or_refused(path: Path, content: bytes) -> None:
    assert_read_or_refused_in_one_line(path, content)


@modest
@given(content=files_with_changed_bytes())
def test_changed_or_missing_bytes_are_read_or_refused(path: Path, content: bytes) -> None:
    assert_read_or_refused_in_one_line(path, content)


@modest
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(lambda t: t.encode("utf-8")))
def test_any_bytes_are_read_or_refused(path: Path, content: bytes) -> None:
    assert_read_or_refused_in_one_line(path, content)


@modest
@given(value=hostile_values, name=st.sampled_from(["gpuscale-results", "gpuscale-baseline"]))
def test_any_json_under_a_right_name_is_read_or_refused(
    path: Path, value: object, name: str
) -> None:
    document = {"format": name, "version": 1, "environment": value, "hardware": value}
    assert_read_or_refused_in_one_line(path, json.dumps(document).encode())
    document = {"format": value, "version": value}
    assert_read_or_refused_in_one_line(path, json.dumps(document).encode())


def test_every_kind_of_hostile_value_is_refused_at_its_place(path: Path) -> None:
    for raw in RAW.values():
        text = VALID[0].decode().replace('"wall_s": 3.9', f'"wall_s": {raw}')
        path.write_text(text)
        with pytest.raises(FileError, match=r"file\.json:2: "):
            read_results(path)
