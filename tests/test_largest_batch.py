"""`gpuscale batch`: powers of two until memory is out, then exactly."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import run
from changing import replace
from measuring import TIMEOUT_S, write_case

from gpuscale.base.errors import GpuscaleError
from gpuscale.measure.largest_batch import Try, tries
from gpuscale.records import Failure, FailureKind, Run

TAKES_64_MIB_A_SAMPLE = """
class Case(Tiny):
    batch = 2

    def forward(self, model, inputs):
        inputs.new_empty(len(inputs) * 2**24)
        return model(inputs)
"""


def machine_for(
    most: int, kind: FailureKind = "out_of_memory", message: str = "it failed"
) -> Callable[[int], Run]:
    """Runs that fail in that way beyond a batch."""

    def make_run(batch: int) -> Run:
        if batch <= most:
            return run(1, 0.1, peak_memory_bytes=1000 * batch)
        return replace(run(1, None), failure=Failure(kind=kind, message=message, rank=3))

    return make_run


def batches(made: list[Try]) -> list[int]:
    return [each.batch for each in made]


def test_powers_of_two_and_then_halves_lead_to_the_largest() -> None:
    made = list(tries(machine_for(143), first=20, unit=1, most=1000))
    assert batches(made) == [16, 32, 64, 128, 256, 192, 160, 144, 136, 140, 142, 143]
    assert [each.peak_memory_bytes for each in made][-4:] == [136000, 140000, 142000, 143000]
    assert {each.failed_rank for each in made if not each.fits} == {3}


@pytest.mark.parametrize("first", [1, 7, 64, 900])
@pytest.mark.parametrize("unit", [1, 3])
def test_whatever_fits_is_found_and_nothing_is_tried_twice(first: int, unit: int) -> None:
    for most in range(70):
        made = list(tries(machine_for(most), first=first, unit=unit, most=65))
        fitting = [each.batch for each in made if each.fits]
        assert max(fitting, default=0) == min(most, 65) // unit * unit
        assert len(set(batches(made))) == len(made)


def test_a_run_that_is_not_steady_fits() -> None:
    made = list(tries(machine_for(0, "unsteady"), first=4, unit=1, most=4))
    assert [(each.batch, each.fits) for each in made] == [(4, True)]


def test_another_failure_ends_the_search_with_its_reason() -> None:
    with pytest.raises(GpuscaleError, match=r"a batch of 16, after 8 had fitted: it failed"):
        list(tries(machine_for(8, "raised"), first=8, unit=1, most=100))


def test_convolutions_without_room_for_their_workspace_are_out_of_memory() -> None:
    said = "RuntimeError: GET was unable to find an engine to execute this computation"
    made = list(tries(machine_for(9, "raised", said), first=8, unit=1, most=100))
    assert max(each.batch for each in made if each.fits) == 9
    # Where no batch has fitted, cuDNN may just not have it for this GPU.
    with pytest.raises(GpuscaleError, match="a batch of 8: RuntimeError"):
        list(tries(machine_for(0, "raised", said), first=8, unit=1, most=100))


def test_the_command_finds_what_fits_into_the_memory_that_ranks_are_left(tmp_path: Path) -> None:
    path = write_case(tmp_path, TAKES_64_MIB_A_SAMPLE)
    command = [sys.executable, "-m", "gpuscale", "batch", f"{path.name}::Case", "--gpus", "2"]
    found = subprocess.run(
        [*command, "--device", "cpu", "--memory-limit", "400MiB", "--format", "json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    # What a rank takes beside its samples differs between versions of torch.
    assert 1 <= answer["batch"] <= 6
    assert f"test_tiny.py --gpus 1,2 --device cpu --batch {answer['batch']}" in answer["command"]
    fits = {each["batch"]: each["fits"] for each in answer["tries"]}
    assert (fits[answer["batch"]], fits[answer["batch"] + 1]) == (True, False)
