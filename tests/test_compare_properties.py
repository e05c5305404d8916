"""Statements that hold of every comparison, whatever was measured."""

from collections.abc import Mapping, Sequence

import pytest
from builders import baseline, figure, measured, published
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscale.judge.compare import compare
from gpuscale.records import Baseline, Results
from gpuscale.reports.reason_words import reason_text, statement_text

pytestmark = pytest.mark.thorough
GPUS = st.sampled_from([1, 2, 4])
# The bounds that the file formats put on seconds.
SECONDS = st.one_of(st.floats(1e-9, 1e9), st.floats(0.09, 0.11), st.sampled_from([1e-9, 0.1, 1e9]))
MEASURED = st.dictionaries(GPUS, st.lists(st.none() | SECONDS, min_size=1, max_size=4))
MEASURED_BASELINE = st.builds(
    lambda times, allocations: baseline(times, allocations=[f"a{i}" for i in range(allocations)]),
    st.dictionaries(GPUS, st.lists(SECONDS, min_size=1, max_size=6)),
    st.integers(1, 5),
)
PUBLISHED_BASELINE = st.builds(
    lambda times, nodes: published(
        *(figure(gpus, time_s=time_s, nodes=min(gpus, nodes)) for gpus, time_s in times.items())
    ),
    st.dictionaries(GPUS, SECONDS),
    st.integers(1, 2),
)


def _nights(times: Sequence[Mapping[int, Sequence[float | None]]]) -> list[Results]:
    return [measured(night, job_id=f"job{i}") for i, night in enumerate(times)]


@settings(max_examples=150, derandomize=True, deadline=None)
@given(MEASURED_BASELINE | PUBLISHED_BASELINE, st.lists(MEASURED, max_size=2))
def test_every_comparison_has_a_reasoned_row_for_every_entry_of_either_side(
    before: Baseline, times: list[dict[int, list[float | None]]]
) -> None:
    comparison = compare(before, _nights(times))
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


@settings(max_examples=150, derandomize=True, deadline=None)
@given(MEASURED_BASELINE | PUBLISHED_BASELINE, st.lists(MEASURED, max_size=2))
def test_only_a_comparison_of_passes_that_compared_something_ends_with_0(
    before: Baseline, times: list[dict[int, list[float | None]]]
) -> None:
    comparison = compare(before, _nights(times))
    passed = [entry.verdict.is_pass for entry in comparison.entries]
    assert (comparison.exit_code == 0) == (bool(passed) and all(passed))
    if comparison.exit_code == 0:
        assert any(entry.change is not None for entry in comparison.entries)
