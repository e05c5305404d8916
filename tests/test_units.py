import pytest

from gpuscale.base import text as texts
from gpuscale.base.text import counted, format_bytes, format_percent, format_seconds, significant
from gpuscale.reports.phrases import to_minutes


@pytest.mark.parametrize(
    ("number", "text"),
    [(99.94, "99.9"), (99.96, "100"), (0.09996, "0.100"), (1520.4, "1520"), (0, "0")],
)
def test_a_number_keeps_three_digits_where_rounding_adds_one(number: float, text: str) -> None:
    assert significant(number) == text


def test_units_fit_the_size_of_what_they_measure() -> None:
    times = [format_seconds(time_s) for time_s in (0.000412, 0.0412, 4.12, 412, 71372)]
    assert times == ["412 µs", "41.2 ms", "4.12 s", "6 min 52 s", "19 h 50 min"]
    assert [format_bytes(count) for count in (512, 1.5 * 2**30)] == ["512 B", "1.50 GiB"]
    shares = [texts.rough_percent(share) for share in (0.0696, 0.0996, 0.2746, 1.2)]
    assert shares == ["7.0 %", "10 %", "27 %", "120 %"]
    percents = [format_percent(share, signed=True) for share in (-0.0912, 0.02, -0.0001)]
    assert percents == ["−9.1 %", "+2.0 %", "+0.0 %"]


def test_a_number_that_rounding_makes_one_of_the_next_unit_has_that_unit() -> None:
    times = [format_seconds(s) for s in (0.9994, 0.9996, 0.0009994, 0.0009996, 119.4, 119.6)]
    assert times == ["999 ms", "1.00 s", "999 µs", "1.00 ms", "119 s", "2 min 0 s"]
    assert [format_bytes(mib * 2**20) for mib in (1023.4, 1023.6)] == ["1023 MiB", "1.00 GiB"]


def test_a_word_has_its_plural_unless_there_is_one_of_it() -> None:
    found = [counted(count, word) for word in ("run", "more run", "entry") for count in (1, 2)]
    assert found == ["1 run", "2 runs", "1 more run", "2 more runs", "1 entry", "2 entries"]


def test_moments_are_told_to_the_minute_unless_two_collide() -> None:
    times = ("07:11.248", "07:12", "08:59.1")
    one, other, later = (f"vm 2026-11-21T23:{time}+00:00" for time in times)
    minute = "vm 2026-11-21 23:07"
    assert to_minutes(f"{one}, {later}, {one}") == f"{minute}, vm 2026-11-21 23:08, {minute}"
    assert to_minutes(f"{one} and {other}") == "vm 2026-11-21 23:07:11 and vm 2026-11-21 23:07:12"
    assert to_minutes("job 4711, night.jsonl") == "job 4711, night.jsonl"
