"""What the sections of a page say, before they are made into HTML."""

from collections.abc import Sequence

import pytest
from builders import baseline, environment, measured, results, run
from builders.nights import Night, results_of_night
from changing import replace
from statements import known

from gpuscale.analysis.history import history_of
from gpuscale.records import Environment, Results
from gpuscale.reports.page import Section, Subject, Table
from gpuscale.reports.page.sections import machines, measured_headline, nights


def test_without_a_baseline_rows_with_a_number_are_counted() -> None:
    first = replace(environment(), torch_version="2.11")
    several = [
        results(run(1, 1.0), run(2, None), where=first),
        results(run(4, 1.0), where=replace(first, torch_version="2.12")),
    ]
    said = dict(measured_headline(Subject(results=several)))
    assert said["MEASURED"] == (
        "2 of 3 rows, since no run of the others is valid; no baseline was given, so nothing is "
        "judged"
    )
    # The software is that of the first file, which also names the place.
    assert "2.11" in said["software"]
    alone = dict(measured_headline(Subject(results=several[1:])))
    assert alone["MEASURED"] == "1 row; no baseline was given, so nothing is judged"


def cells(found: Section | None) -> dict[str, list[str]]:
    """Return the texts of each row of a section's table, with the small type of its first cell."""
    (table,) = known(found).tables
    assert isinstance(table, Table)
    words = {}
    for row in table.rows:
        label, *texts = row.values()
        words[f"{label.text} {label.below}".strip()] = [text.text for text in texts]
        tones = {text.tone for text in texts}
        assert tones == ({"doubt"} if label.below else {""})
    return words


def on(host: str, **changes: object) -> Environment:
    return replace(environment(job_id=host), host=host, **changes)


def test_machines_are_named_on_both_sides_and_only_what_differs_is_marked() -> None:
    now: Sequence[Results] = [
        replace(measured({1: [1.0]}), environment=on("n1", driver_version="580", launcher="slurm")),
        replace(measured({1: [1.0]}), environment=on("n2", driver_version="580", launcher="slurm")),
    ]
    then = replace(baseline({1: [1.0]}), environments={"a": on("n1", driver_version="570")})
    found = cells(machines(Subject(results=now, baseline=then)))
    assert found["driver differs"] == ["570", "580"]
    assert found["host differs"] == ["n1", "n1, n2"]
    # Machine and job are others anyway, and what is unknown is no difference.
    assert found["job"][0] == "n1"
    assert found["launcher"] == ["–", "slurm"]
    assert "machine" in found
    assert "devices" in found
    alone = cells(machines(Subject(results=now)))
    assert alone["host"] == ["n1, n2"]
    assert "devices" in alone


def series(faster: float) -> list[Results]:
    """Return twelve nights of which the last four are faster by a factor."""
    return [
        results_of_night(
            Night(job=str(day), day=day, faster=faster if day >= 8 else 1.0, gpus=(1, 2))
        )
        for day in range(12)
    ]


@pytest.mark.parametrize(("faster", "tone"), [(0.8, "loss"), (1.25, "pass")])
def test_the_changes_of_nights_are_marked_as_losses_or_gains(faster: float, tone: str) -> None:
    found = series(faster)
    section = known(nights(Subject(results=found, history=history_of(found))))
    assert {block.tone for block in section.blocks} == {tone}
    assert section.title == "History"
    assert section.intro.endswith(".")
    assert nights(Subject(results=found)) is None
