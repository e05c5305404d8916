"""The examples of docs/cases.md are measured as they stand, and its tables name what there is."""

import re
from pathlib import Path

import pytest
import torch
from measuring import REPOSITORY, run_pytest

from gpuscale import TrainingCase
from gpuscale.base.strategies import STRATEGIES

PAGE = (REPOSITORY / "docs" / "cases.md").read_text(encoding="utf-8")
ARGUMENTS = ("--device", "cpu", "--runs", "1", "--run-seconds", "0.2")


def write_examples(folder: Path) -> list[str]:
    """The files of the page's examples, in order."""
    blocks: list[str] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for number, block in enumerate(blocks):
        (folder / f"test_{number}.py").write_text(block)
    return [f"test_{number}.py" for number in range(len(blocks))]


@pytest.mark.parametrize("data", [(), ("--data", "loader", "--data-workers", "1")])
def test_the_examples_are_measured_as_they_stand(tmp_path: Path, data: tuple[str, ...]) -> None:
    write_examples(tmp_path)
    session = run_pytest(tmp_path, *ARGUMENTS, "--gpus", "2", *data).ended()
    trained = {run.configuration.case for run in session.results.runs if run.is_valid}
    assert trained == {"spectra", "captions", "language"}


def test_the_example_with_own_data_loads_them(tmp_path: Path) -> None:
    spectra = write_examples(tmp_path)[0]
    data = tmp_path / "data"
    data.mkdir()
    for number in range(2):
        labels = torch.arange(64) % 4
        torch.save({"values": torch.rand(64, 256), "labels": labels}, data / f"{number}.pt")
    asked = ("--gpus", "1", "--data-root", str(data))
    (run,) = run_pytest(tmp_path, spectra, *ARGUMENTS, *asked).ended().results.runs
    assert run.configuration.data == "real"


def test_a_test_asserts_on_the_run_as_the_page_says(tmp_path: Path) -> None:
    (asserted,) = re.findall(r"^    (assert scaling\(\).*)$", PAGE, re.MULTILINE)
    spectra = tmp_path / write_examples(tmp_path)[0]
    fast, ahead = asserted.replace("0.05", "60"), asserted.replace("0.05", "0")
    for line, exit_code in ((fast, 0), (ahead, 1)):
        call = re.compile(r"^    (scaling\(\)|assert .*)$", re.MULTILINE)
        spectra.write_text(call.sub(f"    {line}", spectra.read_text()))
        answer = run_pytest(tmp_path, spectra.name, *ARGUMENTS, "--gpus", "1").ended(exit_code)
        assert re.search(r"^results: ", answer.output, re.MULTILINE)


def test_the_page_names_everything_that_a_case_can_say_and_every_option_of_ddp() -> None:
    public = {name for name in vars(TrainingCase) if not name.startswith("_")}
    for name in public - {"default_strategy", "options_text", "named_size"}:
        assert re.search(rf"`{name}[`(]", PAGE), name
    for option in STRATEGIES["ddp"].options:
        assert f"`{option}`" in PAGE
