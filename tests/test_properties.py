"""Statements that hold of every comparison and diagnosis, whatever numbers a file may hold."""

import math
import re

import pytest
from builders import baseline, environment, figure, gpu_summary, measured, published, with_values
from changing import replace
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscale.judge.compare import compare
from gpuscale.judge.diagnose.causes import diagnose
from gpuscale.judge.sides import sides_of
from gpuscale.records import Baseline, Results, Run, Verdict
from gpuscale.records.cause import Cause, CauseKind
from gpuscale.records.evidence import Phases, RankReport
from gpuscale.reports.cause_evidence import evidence
from gpuscale.reports.cause_words import next_step, whole_line
from gpuscale.reports.reason_words import reason_text, statement_text

pytestmark = pytest.mark.thorough
SECONDS = st.floats(0, 1e9)
STEPS = st.floats(1e-9, 1e9)
SUMMARIES = st.builds(
    lambda clock, share: replace(
        with_values(gpu_summary(0.5), sm_clock_mean_mhz=clock), clock_event_reasons={"x": share}
    ),
    st.none() | st.floats(0, 1e5),
    st.floats(0, 1),
)
PHASES = st.builds(Phases, **dict.fromkeys(Phases.__struct_fields__, SECONDS))
RANKS = st.lists(st.tuples(st.none() | SECONDS, st.none() | PHASES), min_size=1, max_size=3)


@st.composite
def with_evidence(draw: st.DrawFn, plain: Run) -> Run:
    found = draw(st.none() | st.floats(-1e9, 1e9))
    exposed = {} if found is None else {"exposed_communication_s": found}
    return replace(
        plain,
        windows=(),
        unsynced_windows=(),
        measured={"step_time_s": plain.step_time_s, **exposed},
        ranks=tuple(
            RankReport(rank=rank, host="n1", device_uuids=("GPU-0",), pace_s=pace_s, phases=phases)
            for rank, (pace_s, phases) in enumerate(draw(RANKS))
        ),
        gpu_summaries=tuple(draw(st.lists(SUMMARIES, max_size=1))),
    )


UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
DURATION = r"([−+]?[\d.]+) (s|ms|µs)"


def assert_numbers_agree(line: str) -> None:
    """Check that the two times shown differ by the increase and what was taken back of it."""
    back = rf"(?:, {DURATION} of it taken back)?"
    pattern = rf" \+{DURATION}.*?: .* {DURATION} a step .*\((?:baseline|before): {DURATION}\){back}"
    found = re.search(pattern, line.replace("+−", "−"))
    if " min" in line:
        return
    assert found is not None, line
    numbers = [found[at] or "0" for at in (1, 3, 5, 7)]
    units = [UNITS[found[at] or "s"] for at in (2, 4, 6, 8)]
    shown = [float(n.replace("−", "-")) * unit for n, unit in zip(numbers, units, strict=True)]
    added, after, before, back_s = shown
    rounded = sum(map(half_digit, shown, (2, 3, 3, 3)))
    assert abs(after - before - back_s - added) <= 1.01 * rounded, line


def half_digit(number: float, digits: int) -> float:
    """Half of the last of a number's significant digits."""
    return 0.5 * 10.0 ** (math.floor(math.log10(abs(number))) + 1 - digits) if number else 0.0


PARTS = st.sampled_from(
    ["communication", "late_batches", "late_copies", "computing", "stragglers", "time_in_no_part"]
)


@given(PARTS, st.floats(-1e-3, 10.0), st.floats(1e-5, 10.0), st.floats(0.0, 0.9))
def test_times_of_causes_sum(code: str, before_s: float, grown_s: float, given_back: float) -> None:
    after_s, lost_s = before_s + grown_s, (1 - given_back) * grown_s
    kind = CauseKind.COMPUTE
    cause = Cause(kind=kind, code=code, lost_s=lost_s, before_s=before_s, after_s=after_s)
    line = whole_line(cause, "cuda")
    assert_numbers_agree(line)
    assert ("taken back by shorter exposed communication" in line) or given_back <= 0.0101


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_no_numbers_break_a_diagnosis_and_those_of_a_cause_agree(data: st.DataObject) -> None:
    gpus = data.draw(st.sampled_from([1, 4]))
    times = data.draw(st.lists(STEPS, min_size=2, max_size=4))
    plain: Baseline = baseline({gpus: times})
    runs = tuple(data.draw(st.just(run) | with_evidence(run)) for run in plain.runs)
    before = replace(plain, runs=runs, environments={"then": environment()})
    night: Results = measured({gpus: data.draw(st.lists(STEPS, min_size=1, max_size=3))})
    now = replace(night, runs=tuple(data.draw(with_evidence(run)) for run in night.runs))
    comparison = compare(before, [now])
    called = tuple(replace(row, verdict=Verdict.REGRESSED) for row in comparison.entries)
    (row,) = diagnose(sides_of(before, [now]), replace(comparison, entries=called)).entries
    assert row.causes
    for cause in row.causes:
        line = whole_line(cause, "cuda")
        assert line
        if cause.lost_s is not None:
            assert_numbers_agree(line)
        assert all(evidence(cause))
        assert next_step(cause) or cause.remedy is None
    shares = [cause.share for cause in row.causes if cause.share is not None]
    assert all(0 <= share <= 1 for share in shares)
    assert sum(shares) <= 1 + 1e-9


GPUS = st.sampled_from([1, 2, 4])
# The bounds that the file formats put on seconds.
STEP_SECONDS = STEPS | st.floats(0.09, 0.11) | st.sampled_from([1e-9, 0.1, 1e9])
MEASURED = st.dictionaries(GPUS, st.lists(st.none() | STEP_SECONDS, min_size=1, max_size=4))
MEASURED_BASELINE = st.builds(
    lambda times, allocations: baseline(times, allocations=[f"a{i}" for i in range(allocations)]),
    st.dictionaries(GPUS, st.lists(STEP_SECONDS, min_size=1, max_size=6)),
    st.integers(1, 5),
)
PUBLISHED_BASELINE = st.builds(
    lambda times, nodes: published(
        *(figure(gpus, time_s=time_s, nodes=min(gpus, nodes)) for gpus, time_s in times.items())
    ),
    st.dictionaries(GPUS, STEP_SECONDS),
    st.integers(1, 2),
)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(MEASURED_BASELINE | PUBLISHED_BASELINE, st.lists(MEASURED, max_size=2))
def test_every_comparison_has_a_reasoned_row_for_every_entry_and_passes_only_what_it_compared(
    before: Baseline, times: list[dict[int, list[float | None]]]
) -> None:
    nights = [measured(night, job_id=f"job{i}") for i, night in enumerate(times)]
    comparison = compare(before, nights)
    expected = {run.gpus for run in before.runs}
    expected.update(published_figure.gpus for published_figure in before.published)
    expected.update(gpus for night in times for gpus in night)
    assert [entry.key.gpus for entry in comparison.entries] == sorted(expected)
    assert all(statement_text(note) for note in comparison.notes)
    for entry in comparison.entries:
        assert reason_text(entry)
        assert "\n" not in reason_text(entry)
        change = entry.change
        if change is not None and change.low is not None and change.high is not None:
            assert change.low <= change.value <= change.high
    passed = [entry.verdict.is_pass for entry in comparison.entries]
    assert (comparison.exit_code == 0) == (bool(passed) and all(passed))
    if comparison.exit_code == 0:
        assert any(entry.change is not None for entry in comparison.entries)
