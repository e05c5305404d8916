"""`gpuscale batch`: powers of two until memory is out, then exactly."""

import re
import sys
from pathlib import Path

import pytest
from builders import run
from changing import replace
from command_line import refusal
from measuring import write_case

from gpuscale.base.errors import GpuscaleError, UsageError
from gpuscale.cli.batch import has_fitted, largest_batch
from gpuscale.records import Failure, FailureKind
from gpuscale.workload.cases import case_class

NO_ENGINE = "RuntimeError: GET was unable to find an engine to execute this computation"


def tried(most: int, *, first: int, unit: int = 1, limit: int) -> tuple[int, list[int]]:
    """The batch found on a machine that holds `most`, and all that were tried."""
    batches: list[int] = []

    def does_fit(batch: int, fitted: int) -> bool:
        assert fitted == max((b for b in batches if b <= most), default=0)
        batches.append(batch)
        return batch <= most

    return largest_batch(does_fit, first=first, unit=unit, most=limit), batches


def failed(kind: FailureKind, message: str = "it failed") -> Failure:
    return Failure(kind=kind, message=message, rank=3)


def test_powers_of_two_and_then_halves_lead_to_the_largest() -> None:
    found, batches = tried(143, first=20, limit=1000)
    assert found == 143
    assert batches == [16, 32, 64, 128, 256, 192, 160, 144, 136, 140, 142, 143]


@pytest.mark.parametrize("first", [1, 7, 64, 900])
@pytest.mark.parametrize("unit", [1, 3])
def test_whatever_fits_is_found_and_nothing_is_tried_twice(first: int, unit: int) -> None:
    for most in range(70):
        found, batches = tried(most, first=first, unit=unit, limit=65)
        assert found == min(most, 65) // unit * unit
        assert len(set(batches)) == len(batches)


def test_a_batch_fits_unless_memory_is_lacking() -> None:
    for failure in (None, failed("unsteady")):
        assert has_fitted(replace(run(1, 0.1), failure=failure), 16, fitted=8)
    for failure in (failed("out_of_memory"), failed("raised", NO_ENGINE)):
        assert not has_fitted(replace(run(1, 0.1), failure=failure), 16, fitted=8)


def test_another_failure_ends_the_search_with_its_reason() -> None:
    made = replace(run(1, None), failure=failed("raised"))
    with pytest.raises(GpuscaleError, match=r"a batch of 16, after 8 had fitted: it failed"):
        has_fitted(made, 16, fitted=8)
    # If no batch has fitted, cuDNN may just have no engine for this GPU.
    made = replace(made, failure=failed("raised", NO_ENGINE))
    with pytest.raises(GpuscaleError, match="a batch of 8: RuntimeError"):
        has_fitted(made, 8, fitted=0)


def test_cpu_ranks_are_refused(tmp_path: Path) -> None:
    path = write_case(tmp_path, "Case = Tiny")
    said = refusal("batch", f"{path}::Case", "--device", "cpu")
    assert "gpuscale batch fills the memory of GPUs" in said


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("test_tiny.py::Other", "there is test_tiny.py::Tiny"),
        # Whatever a user's file raises is a message, and no bug of ours.
        ("test_broken.py::Case", "No module named 'nowhere_at_all'"),
        ("none.py::Case", "there is no file none.py"),
        ("test_tiny.py", "as FILE::Class"),
    ],
)
def test_a_case_that_cannot_be_had_is_told_with_those_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, told: str
) -> None:
    write_case(tmp_path, "Case = Tiny")
    (tmp_path / "test_broken.py").write_text("import nowhere_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(UsageError, match=re.escape(told)):
        case_class(case)
