"""On how many nodes the ranks ran: another layout is another measurement."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from scaling_records import baseline, measured, results, run

from gpuscale.compare import compare
from gpuscale.compare.layout import layout_differences
from gpuscale.evidence import evidence_of
from gpuscale.records import Baseline, MeasuredEntry, Results, Run, Verdict

TIMES_S = {1: [0.1, 0.1001, 0.1002], 4: [0.125, 0.1251, 0.1252]}


def _on(hosts: Sequence[str], made: Run) -> Run:
    ranks = zip(made.ranks, hosts, strict=False)
    return replace(made, ranks=tuple(replace(rank, host=host) for rank, host in ranks))


def _then(*hosts: str) -> Baseline:
    known = baseline({1: [0.1] * 6, 4: [0.11] * 6})
    evidence = {1: evidence_of(run(1, 0.1)), 4: evidence_of(_on(hosts, run(4, 0.11)))}
    return replace(
        known,
        measured=tuple(
            replace(
                entry,
                runs=tuple(replace(each, evidence=evidence[entry.gpus]) for each in entry.runs),
            )
            for entry in known.measured
        ),
    )


def _now(*hosts: str) -> Results:
    return results(*(_on(hosts, made) for made in measured(TIMES_S).runs))


def test_ranks_spread_over_more_nodes_are_not_called_a_scaling_loss() -> None:
    comparison = compare(_then("a", "a", "a", "a"), [_now("a", "a", "b", "b")])
    one, four = comparison.entries
    assert one.verdict is Verdict.OK
    assert four.verdict is Verdict.INCOMPARABLE
    assert four.reason == "not the same measurement (ranks per node: 4 → 2 + 2)"


def test_other_nodes_with_as_many_ranks_each_are_the_same_layout() -> None:
    comparison = compare(_then("a", "b", "b", "b"), [_now("c", "c", "c", "d")])
    assert comparison.entries[1].verdict is Verdict.REGRESSED


def _entry(*layouts: Sequence[str]) -> MeasuredEntry:
    entry = baseline({4: [0.11] * len(layouts)}).measured[0]
    return replace(
        entry,
        runs=tuple(
            replace(each, evidence=evidence_of(_on(hosts, run(4, 0.11))))
            for each, hosts in zip(entry.runs, layouts, strict=True)
        ),
    )


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        (["aaaa", "aabb"], ["ccdd"], ()),
        (["aaaa"], ["aaaa", "abcd"], ("ranks per node: 4 → 1 + 1 + 1 + 1 or 4",)),
    ],
)
def test_each_layout_of_now_must_be_one_of_then(
    then: list[str], now: list[str], told: tuple[str, ...]
) -> None:
    assert layout_differences(_entry(*then), [_on(hosts, run(4, 0.1)) for hosts in now]) == told


def test_a_baseline_that_kept_no_ranks_holds_no_layout_against_anyone() -> None:
    comparison = compare(baseline({4: [0.11] * 6}), [_now("a", "b", "c", "d")], gpus=[4])
    assert comparison.entries[0].verdict is Verdict.REGRESSED
