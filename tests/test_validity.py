"""The validity of a baseline: expiry, and machines that only look alike."""

from argparse import Namespace
from datetime import date

import pytest
from builders import baseline, environment, results
from changing import replace

from gpuscale.base.errors import UsageError
from gpuscale.cli.baseline import last_valid_day
from gpuscale.judge.compare import compare
from gpuscale.judge.compare.hardware import foreign_note
from gpuscale.judge.compare.notes import expiry_note, with_validity
from gpuscale.judge.sides import sides_of
from gpuscale.records import Environment, GpuDevice, Statement

THEN = baseline({1: [1.0] * 6})
MEASURED_AT = "2026-11-21T23:30:00-05:00"


def test_a_baseline_holds_through_its_last_day() -> None:
    expiring = replace(THEN, expires_on="2027-05-01")
    assert expiry_note(expiring, date(2027, 5, 1)) is None
    yesterday = expiry_note(expiring, date(2027, 5, 2))
    assert yesterday == Statement.of("expired", on="2027-05-01", days=1)
    later = expiry_note(expiring, date(2027, 6, 1))
    assert later == Statement.of("expired", on="2027-05-01", days=31)
    assert expiry_note(THEN, date.max) is None


def test_expiry_is_a_date() -> None:
    assert last_valid_day(Namespace(expires=None)) is None
    assert last_valid_day(Namespace(expires="2027-05-01")) == "2027-05-01"
    with pytest.raises(UsageError, match="--expires: 'soon' is not a date such as 2027-05-01"):
        last_valid_day(Namespace(expires="soon"))


def of_cpu(cpu_model: str | None) -> Environment:
    return replace(environment(), cpu_model=cpu_model)


@pytest.mark.parametrize(
    ("known", "here", "is_foreign"),
    [
        ("POWER9", "Xeon Gold 6138", True),
        ("POWER9", "POWER9, altivec supported", False),
        ("Intel(R) Xeon(R) Gold 6138 CPU @ 2.00GHz", "Xeon Gold 6138", False),
        (None, "Xeon Gold 6138", False),
        ("POWER9", None, False),
    ],
)
def test_gpus_in_another_host(known: str | None, here: str | None, is_foreign: bool) -> None:
    hardware = replace(THEN.hardware, cpu_model=known)
    note = foreign_note(hardware, [of_cpu(here)])
    assert (note is not None) == is_foreign
    cpu = Statement.of("host_has_other_cpu", before=known, now=here)
    assert note is None or note.facts["differences"] == [cpu]


def test_a_job_may_see_fewer_gpus_than_the_node_has_but_not_more() -> None:
    device = GpuDevice(index=0, name="V100")
    assert foreign_note(THEN.hardware, [replace(environment(), gpus=(device,))]) is None
    note = foreign_note(THEN.hardware, [replace(environment(), gpus=(device,) * 8)] * 2)
    assert note is not None
    more = Statement.of("host_has_more_gpus", before=4, now=8)
    assert note.facts["differences"] == [more]


def test_a_comparison_says_that_its_baseline_has_expired_and_keeps_its_verdicts() -> None:
    now = results()
    plain = compare(THEN, [now])
    assert with_validity(plain, sides_of(THEN, [now]), today=date(2030, 1, 1)) == plain
    expired = replace(THEN, expires_on="2029-12-31")
    noted = with_validity(plain, sides_of(expired, [now]), today=date(2030, 1, 1))
    assert noted.entries == plain.entries
    assert noted.notes[:-1] == plain.notes
    assert noted.notes[-1].facts["on"] == "2029-12-31"
