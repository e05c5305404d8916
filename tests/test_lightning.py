"""The strategy `lightning`, where its extra is installed."""

import os
from itertools import pairwise
from pathlib import Path

import pytest
from measuring import Session, run_pytest, write_case

from gpuscale.records import Run

TINY = ("--size", "smoke", "--run-seconds", "0.3", "-q")
"""Runs of fractions of a second."""

# With a buffer, which DDP broadcasts, a schedule, and its own word on what it was given.
CASE = '''
class Case(Tiny):
    strategies = ("ddp", "lightning")

    def model(self):
        return torch.nn.Sequential(torch.nn.BatchNorm1d(16), super().model())
'''


def test_without_its_extra_it_is_skipped_with_what_installs_it(tmp_path: Path) -> None:
    hidden = tmp_path / "conftest.py"
    hidden.write_text("import sys\nsys.modules['lightning'] = None\n")
    write_case(tmp_path, CASE)
    session = run_pytest(tmp_path, *TINY, "--gpus", "1", "--strategy", "lightning")
    assert "pip install 'gpuscale[lightning]'" in session.output
