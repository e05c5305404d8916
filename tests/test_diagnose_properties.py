"""Whatever numbers a file may hold, a diagnosis is given and its shares are shares."""

from changing import replace
from hypothesis import given, settings
from hypothesis import strategies as st
from scaling_records import baseline, environment, gpu_summary, measured

from gpuscale.compare import compare
from gpuscale.diagnose import diagnose
from gpuscale.records import (
    Baseline,
    Phases,
    RankEvidence,
    RankReport,
    Results,
    Run,
    RunEvidence,
    Verdict,
    Window,
)
from gpuscale.report.causes_text import entry_causes_lines

SECONDS = st.floats(0, 1e9)
STEPS = st.floats(1e-9, 1e9)
SUMMARIES = st.builds(
    lambda clock, share, xids: replace(
        gpu_summary(0.5), sm_clock_mean_mhz=clock, clock_event_reasons={"x": share}, xids=xids
    ),
    st.none() | st.floats(0, 1e5),
    st.floats(0, 1),
    st.none() | st.tuples() | st.tuples(st.integers(0, 200)),
)
RANKS = st.lists(
    st.tuples(
        st.none() | SECONDS,
        st.none() | st.builds(Phases, **dict.fromkeys(Phases.__slots__, SECONDS)),
    ),
    min_size=1,
    max_size=3,
)


@st.composite
def evidence(draw: st.DrawFn) -> RunEvidence:
    return RunEvidence(
        exposed_communication_s=draw(st.none() | st.floats(-1e9, 1e9)),
        ranks=tuple(
            RankEvidence(
                rank=number, host="node1", device_uuids=("GPU-0",), pace_s=pace_s, phases=phases
            )
            for number, (pace_s, phases) in enumerate(draw(RANKS))
        ),
        gpu_summaries=tuple(draw(st.lists(SUMMARIES, max_size=1))),
    )


def run_with(plain: Run, found: RunEvidence, without_sync_s: float | None) -> Run:
    """A run of now that says the same as the evidence of one of then."""
    ranks: tuple[RankReport, ...] = tuple(
        replace(
            plain.ranks[0],
            rank=each.rank,
            device_uuids=each.device_uuids,
            pace_s=each.pace_s,
            phases=each.phases,
        )
        for each in found.ranks
    )
    window = plain.windows[0]
    unsynced: tuple[Window, ...] = ()
    if without_sync_s is not None:
        unsynced = (replace(window, time_s=without_sync_s),)
    return replace(plain, ranks=ranks, unsynced_windows=unsynced, gpu_summaries=found.gpu_summaries)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_no_numbers_break_a_diagnosis(data: st.DataObject) -> None:
    gpus = data.draw(st.sampled_from([1, 4]))
    times = data.draw(st.lists(STEPS, min_size=2, max_size=4))
    plain: Baseline = baseline({gpus: times})
    (entry,) = plain.measured
    before = replace(
        plain,
        measured=(
            replace(
                entry,
                runs=tuple(
                    replace(run, evidence=data.draw(st.none() | evidence())) for run in entry.runs
                ),
            ),
        ),
        environments={"then": environment("Tesla V100-SXM2-16GB")},
    )
    night: Results = measured({gpus: data.draw(st.lists(STEPS, min_size=1, max_size=3))})
    now = replace(
        night,
        runs=tuple(
            run_with(run, data.draw(evidence()), data.draw(st.none() | STEPS)) for run in night.runs
        ),
    )
    comparison = compare(before, [now])
    called = tuple(replace(row, verdict=Verdict.REGRESSED) for row in comparison.entries)
    (row,) = diagnose(before, [now], replace(comparison, entries=called)).entries
    assert row.causes
    assert list(entry_causes_lines(row))
    shares = [cause.share for cause in row.causes if cause.share is not None]
    assert all(0 <= share <= 1 for share in shares)
    assert sum(shares) <= 1 + 1e-9
