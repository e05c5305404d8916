"""Slow nodes are distinguished from changes of the whole machine."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from builders import measured, results_text, run
from builders.nights import Night, results_of_night
from changing import replace
from command_line import gpuscale

from gpuscale.analysis.history import history_of
from gpuscale.analysis.nights import nights_of
from gpuscale.analysis.node_effects import NodeEffect, node_effects, without_slow_nodes
from gpuscale.analysis.shifts_and_drifts import LevelChange, level_changes
from gpuscale.records import PointKey, Results
from gpuscale.reports.history_text import node_table, render
from gpuscale.reports.page import Subject
from gpuscale.reports.page.sections import nights as nights_section
from gpuscale.reports.screen import Screen

POINT = PointKey.of(run(4, 0.1))
SLOW = "nid0417"
(ANY_NIGHT,) = nights_of([measured({4: [0.1]})])


def judged(
    nodes: Sequence[str], values: Sequence[float]
) -> tuple[tuple[NodeEffect, ...], tuple[LevelChange, ...]]:
    nights = [
        replace(ANY_NIGHT, log_costs={POINT: value}, nodes={POINT: frozenset({node})})
        for node, value in zip(nodes, values, strict=True)
    ]
    effects = node_effects(nights)
    left = without_slow_nodes(nights, effects)
    return effects, level_changes([night.log_costs[POINT] for night in left])


def history(
    rng: random.Random, *, step_at: int = 1000, slow: float = 0.04, count: int = 30, others: int = 8
) -> tuple[list[str], list[float]]:
    """Nights on rotating nodes; one of the nodes is slower and has three nights."""
    visits = rng.sample(range(count), 3)
    nodes = [SLOW if i in visits else f"nid{rng.randrange(others):04}" for i in range(count)]
    values = [
        rng.gauss(0, 0.005) - math.log1p(-slow if node == SLOW else 0.0) + 0.04 * (i >= step_at)
        for i, node in enumerate(nodes)
    ]
    return nodes, values


def named(effects: Sequence[NodeEffect]) -> set[str]:
    return {effect.node for effect in effects if effect.slow}


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.thorough)])
def test_a_slow_node_is_named_and_a_step_of_all_nodes_is_one_of_the_machine(count: int) -> None:
    rng = random.Random(5)
    tally: Counter[str] = Counter()
    for _ in range(count):
        nodes, values = history(rng)
        effects, changes = judged(nodes, values)
        tally["named"] += SLOW in named(effects)
        tally["level"] += bool(changes)
        tally["level as measured"] += bool(level_changes(values))
        tally["wrong"] += bool(named(effects) - {SLOW})
        nodes, values = history(rng, step_at=28, slow=0.0)
        effects, changes = judged(nodes, values)
        tally["found"] += any(change.seen >= 28 for change in changes)
        tally["blamed"] += bool(named(effects))
        nodes, values = history(rng, step_at=18, slow=0.0)
        tally["blamed later"] += bool(named(judged(nodes, values)[0]))
    assert min(tally["named"], tally["found"]) >= 0.95 * count
    assert tally["level"] <= 0.02 * count < tally["level as measured"]
    assert tally["wrong"] <= 0.01 * count
    assert max(tally["blamed"], tally["blamed later"]) <= 0.02 * count


def test_a_node_on_the_last_nights_alone_is_not_told_from_the_machine() -> None:
    rng = random.Random(7)
    nodes = [f"nid{i % 5:04}" for i in range(20)] + [SLOW] * 3
    values = [rng.gauss(0, 0.003) + 0.04 * (i >= 20) for i in range(23)]
    effects, changes = judged(nodes, values)
    assert not named(effects)
    assert [change.onset for change in changes] == [20]
    # Two nights on other nodes, as fast as before, show that it was the node.
    effects, changes = judged([*nodes, "nid0001", "nid0002"], [*values, 0.001, -0.001])
    assert named(effects) == {SLOW}
    assert not changes
    # If these nights are as slow, the machine is.
    effects, changes = judged([*nodes, "nid0001", "nid0002"], [*values, 0.041, 0.039])
    assert not named(effects)
    assert [change.onset for change in changes] == [20]


def test_a_node_visited_twice_is_not_judged() -> None:
    nodes = [SLOW if i in (5, 12) else f"nid{i % 5:04}" for i in range(20)]
    values = [0.04 * (node == SLOW) + 0.001 * (i % 3) for i, node in enumerate(nodes)]
    effects, _ = judged(nodes, values)
    assert {effect.node: effect.speed for effect in effects}[SLOW] is None


def test_a_node_that_became_slow_is_slow_from_then_on() -> None:
    rng = random.Random(8)
    nodes = [SLOW if i % 4 == 0 else f"nid{i % 4:04}" for i in range(30)]
    slow = (0.05 * (node == SLOW and i > 10) for i, node in enumerate(nodes))
    values = [rng.gauss(0, 0.003) + each for each in slow]
    (first, *_), changes = judged(nodes, values)
    assert (first.node, first.slow) == (SLOW, (12, 16, 20, 24, 28))
    assert not changes


def nights_on(nodes: Sequence[str], slower: Sequence[float]) -> list[Results]:
    """One night on each of these nodes, slower than usual by these fractions."""
    found = []
    for day, (node, loss) in enumerate(zip(nodes, slower, strict=True)):
        made = results_of_night(Night(job=str(3000 + day), day=day, faster=1 - loss, runs=1))
        runs = (
            replace(run, ranks=tuple(replace(rank, host=node) for rank in run.ranks), nodes=())
            for run in made.runs
        )
        found.append(replace(made, runs=tuple(runs)))
    return found


def test_the_history_names_the_node_and_says_what_its_nights_would_change() -> None:
    nodes = [SLOW if i in (9, 10, 19) else f"nid{i % 5:04}" for i in range(24)]
    history = history_of(nights_on(nodes, [0.05 * (node == SLOW) for node in nodes]))
    text = render(history, Screen())
    dates = "2096-03-10, 2096-03-11 and 2096-03-20"
    assert f"{dates} ran on {SLOW}, which is" in text
    assert "slower by itself: no change of the machine" in " ".join(text.split())
    assert "no change of level" in text
    (row, *_) = node_table(history)
    assert (row["node"].text, row["nights"].text) == (SLOW, "3")
    assert row["speed against other nodes"].text.startswith("−4.8")


def test_a_night_is_not_blamed_for_its_node_by_a_comparison_or_the_page(tmp_path: Path) -> None:
    nodes = [SLOW if i in (9, 10, 19, 23) else f"nid{i % 5:04}" for i in range(24)]
    nights = nights_on(nodes, [0.05 * (node == SLOW) for node in nodes])
    for day, night in enumerate(nights):
        (tmp_path / f"night-{day:02}.jsonl").write_text(results_text(night))
    answer = gpuscale("compare", "--history", tmp_path)
    text = " ".join(answer.stdout.split())
    assert f"beware 2096-03-24 ran on {SLOW}, which is 4.8" in text
    assert "slower by itself" in text
    assert "next measure on other nodes (gpuscale submit --nodelist)" in text
    sections = (nights_section(Subject(results=nights, history=history_of(nights))),)
    (table,) = (t for part in sections if part for t in part.tables if "node" in t.rows[0])
    assert table.rows[0]["node"].text == SLOW
    (tmp_path / f"night-{23:02}.jsonl").unlink()
    assert "slower by itself" not in gpuscale("compare", "--history", tmp_path).stdout


def test_a_machine_that_moved_to_other_nodes_is_not_told_apart() -> None:
    nodes = ["nid0001", "nid0002"] * 6 + ["nid0003", "nid0004"] * 2
    history = history_of(nights_on(nodes, [0.05 * (i >= 12) for i in range(16)]))
    text = " ".join(render(history, Screen()).split())
    assert "too few nights to tell it from the machine" in text
    assert "slower by itself" not in text
