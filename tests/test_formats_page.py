"""docs/format.md is true: its examples are read, and it leaves no field out."""

import re
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

from gpuscale.formats.baseline import _RULES as BASELINE_RULES
from gpuscale.formats.results import _RULES as RESULTS_RULES
from gpuscale.records import (
    Baseline,
    BaselineChange,
    Configuration,
    Environment,
    Failure,
    GpuDevice,
    GpuSummary,
    GpuWindow,
    Hardware,
    MeasuredEntry,
    MeasuredRun,
    Node,
    PcieLink,
    Phases,
    PublishedFigure,
    RankEvidence,
    RankReport,
    Results,
    Run,
    RunEvidence,
    Source,
    ToleranceOverride,
    Tolerances,
    Window,
)
from gpuscale.store import read_any, read_baseline, read_results

PAGE = (Path(__file__).parent.parent / "docs" / "format.md").read_text(encoding="utf-8")
RESULTS_PART, BASELINE_PART = PAGE.split("\n## Baseline\n")
IN_RESULTS = (
    Configuration,
    Environment,
    Failure,
    GpuDevice,
    GpuSummary,
    GpuWindow,
    Node,
    PcieLink,
    Phases,
    RankReport,
    Run,
    Window,
)
IN_BASELINES = (
    Baseline,
    BaselineChange,
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


def example(kind: str, path: Path) -> Path:
    found = re.search(rf"```\w+ {kind}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    path.write_text(found[1], encoding="utf-8")
    return path


def fields_in_tables(text: str) -> set[str]:
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_the_results_example_is_read(tmp_path: Path) -> None:
    path = example("results", tmp_path / "example.jsonl")
    results = read_results(path)
    assert [run.is_valid for run in results.runs] == [True, False]
    assert read_any(path) == results


def test_the_baseline_example_is_read(tmp_path: Path) -> None:
    path = example("baseline", tmp_path / "example.json")
    baseline = read_baseline(path)
    assert len(baseline.published) == 4
    assert len(baseline.measured[0].runs) == 3
    assert read_any(path) == baseline


@pytest.mark.parametrize("record", IN_RESULTS, ids=lambda record: record.__name__)
def test_every_field_of_results_has_a_row(record: type) -> None:
    assert {field.name for field in fields(record)} <= fields_in_tables(RESULTS_PART)


@pytest.mark.parametrize("record", IN_BASELINES, ids=lambda record: record.__name__)
def test_every_field_of_a_baseline_has_a_row(record: type) -> None:
    assert {field.name for field in fields(record)} <= fields_in_tables(BASELINE_PART)


def test_the_page_names_no_field_that_does_not_exist() -> None:
    known = {f.name for record in (*IN_RESULTS, *IN_BASELINES, Results) for f in fields(record)}
    assert fields_in_tables(PAGE) - known == {"format", "version"}


def test_every_number_that_can_be_read_has_bounds() -> None:
    unbounded = []
    for rules, records in ((RESULTS_RULES, IN_RESULTS), (BASELINE_RULES, IN_BASELINES)):
        for record in records:
            for name, hint in get_type_hints(record).items():
                is_number = re.search(r"\b(int|float)\b", str(hint)) is not None
                if is_number and name not in rules.fields.get(record, {}):
                    unbounded.append(f"{record.__name__}.{name}")
    assert unbounded == []
