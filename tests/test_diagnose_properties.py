"""A diagnosis is given, and its shares are shares, whatever numbers a file may hold."""

import pytest
from builders import baseline, environment, gpu_summary, measured, with_values
from changing import replace
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscale.judge.compare import compare
from gpuscale.judge.diagnose import diagnose
from gpuscale.judge.sides import sides_of
from gpuscale.records import Baseline, Phases, RankReport, Results, Run, Verdict
from gpuscale.reports.cause_words import evidence, next_step, whole_line

pytestmark = pytest.mark.thorough
SECONDS = st.floats(0, 1e9)
STEPS = st.floats(1e-9, 1e9)
SUMMARIES = st.builds(
    lambda clock, share, xids: replace(
        with_values(gpu_summary(0.5), sm_clock_mean_mhz=clock),
        clock_event_reasons={"x": share},
        xids=xids,
    ),
    st.none() | st.floats(0, 1e5),
    st.floats(0, 1),
    st.none() | st.tuples() | st.tuples(st.integers(0, 200)),
)
RANKS = st.lists(
    st.tuples(
        st.none() | SECONDS,
        st.none() | st.builds(Phases, **dict.fromkeys(Phases.__struct_fields__, SECONDS)),
    ),
    min_size=1,
    max_size=3,
)


@st.composite
def with_evidence(draw: st.DrawFn, plain: Run) -> Run:
    """The run with arbitrary evidence."""
    found = draw(st.none() | st.floats(-1e9, 1e9))
    exposed = {} if found is None else {"exposed_communication_s": found}
    return replace(
        plain,
        windows=(),
        unsynced_windows=(),
        measured={"step_time_s": plain.step_time_s, **exposed},
        ranks=tuple(
            RankReport(
                rank=number, host="node1", device_uuids=("GPU-0",), pace_s=pace_s, phases=phases
            )
            for number, (pace_s, phases) in enumerate(draw(RANKS))
        ),
        gpu_summaries=tuple(draw(st.lists(SUMMARIES, max_size=1))),
    )


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_no_numbers_break_a_diagnosis(data: st.DataObject) -> None:
    gpus = data.draw(st.sampled_from([1, 4]))
    times = data.draw(st.lists(STEPS, min_size=2, max_size=4))
    plain: Baseline = baseline({gpus: times})
    before = replace(
        plain,
        runs=tuple(data.draw(st.just(run) | with_evidence(run)) for run in plain.runs),
        environments={"then": environment("Tesla V100-SXM2-16GB")},
    )
    night: Results = measured({gpus: data.draw(st.lists(STEPS, min_size=1, max_size=3))})
    now = replace(night, runs=tuple(data.draw(with_evidence(run)) for run in night.runs))
    comparison = compare(before, [now])
    called = tuple(replace(row, verdict=Verdict.REGRESSED) for row in comparison.entries)
    (row,) = diagnose(sides_of(before, [now]), replace(comparison, entries=called)).entries
    assert row.causes
    for cause in row.causes:
        assert whole_line(cause)
        assert all(evidence(cause))
        assert next_step(cause) or cause.remedy is None
    shares = [cause.share for cause in row.causes if cause.share is not None]
    assert all(0 <= share <= 1 for share in shares)
    assert sum(shares) <= 1 + 1e-9
