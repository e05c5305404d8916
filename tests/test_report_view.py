"""A comparison in order: the worst first, what is alike folded, and text that fits a terminal."""

import re
from pathlib import Path
from typing import Any

import pytest
from builders import CNN
from builders.comparisons import ALL_REDUCE, PEAK_MEMORY, comparison, entry, of_each_verdict, view
from changing import replace
from statements import codes_given
from wcwidth import wcswidth

import gpuscale
from gpuscale.records import EntryVerdict, Estimate, QuantityName, Statement, Verdict
from gpuscale.records.cause import CauseKind, DeviceSymptom, PhaseChange, Remedy
from gpuscale.records.environment import EnvironmentChange
from gpuscale.reports.cause_evidence import evidence
from gpuscale.reports.cause_words import NEXT_STEPS, NOT_ESTABLISHED, next_step, whole_line
from gpuscale.reports.cause_words import WORDS as CAUSES
from gpuscale.reports.comparison.rows import detail_lines
from gpuscale.reports.comparison.text_markdown_junit import text as text_of
from gpuscale.reports.reason_words import WORDS
from gpuscale.reports.screen import Screen, table, wrapped


def test_rows_with_one_reason_share_one_sentence_and_simply_ok_ones_have_none() -> None:
    missing = [entry(Verdict.MISSING, gpus=gpus) for gpus in (1, 2, 4)]

    def subjects(*rows: EntryVerdict) -> list[str]:
        return [found.subject for found in view(comparison(*rows)).explanations]

    lost = [entry(Verdict.REGRESSED, gpus=gpus, causes=[ALL_REDUCE]) for gpus in (8, 16, 32)]
    assert subjects(*lost) == ["all 3 rows, for example on 32 GPUs"]
    (_, subject) = subjects(lost[0], *missing, entry(Verdict.OK, gpus=8))
    assert subject == "mnist_cnn/ddp on 1, 2 and 4 GPUs"
    many = [entry(Verdict.MISSING, case=f"case_{number}") for number in range(9)]
    (_, subject) = subjects(lost[0], *many, entry(Verdict.OK))
    assert subject.endswith("case_2/ddp on 4 GPUs and 6 more rows")
    assert subjects(*missing, entry(Verdict.OK, gpus=8)) == []


def test_a_row_without_the_rank_of_an_injected_fault_is_named() -> None:
    for alone, said in ((Verdict.OK, "; on 1 GPU there is no rank 1"), (Verdict.MISSING, "")):
        rows = comparison(entry(alone, gpus=1), entry(Verdict.REGRESSED, gpus=4))
        warning = view(rows, "slow-rank=1:1.5", "data=5ms").warning
        assert warning == f"INJECTED slow-rank=1:1.5, data=5ms: not a real result{said}"


def test_a_reason_that_several_rows_share_is_said_once_below_the_table() -> None:
    open_rows = [entry(Verdict.INCONCLUSIVE, gpus=gpus) for gpus in (1, 2, 4)]
    said = "more runs would probably settle it"
    text = text_of(view(comparison(*open_rows, entry(Verdict.OK, gpus=8))))
    assert text.count(said) == 1
    assert f"mnist_cnn/ddp on 1, 2 and 4 GPUs: about 3 {said}" in text
    alone = text_of(view(comparison(open_rows[0], entry(Verdict.OK, gpus=8))))
    assert f"; about 3 {said}" in alone
    # What disturbs T(1) and S(n) is one sentence too.
    uneven = Statement.of("baseline_runs_differ", deviation=0.05, of_both=20)
    small = Estimate(value=-0.03, low=-0.08, high=0.02)
    facts: dict[str, Any] = {"change": small, "ok_bound": 0.05, "remedy": uneven}
    quantities = (QuantityName.THROUGHPUT_ON_1, QuantityName.EFFICIENCY)
    reasons = [Statement.of("loss_not_excluded", quantity=each, **facts) for each in quantities]
    rows = [replace(row, reason=why) for row, why in zip(open_rows, reasons, strict=False)]
    assert " ".join(text_of(view(comparison(*rows))).split()).count("since the earlier runs") == 1
    # A row that is open for the runs on 1 GPU says so itself.
    facts["remedy"] = Statement.of("baseline_runs_differ", deviation=0.1, of_both=30, on_1=True)
    of_reference = Statement.of("loss_not_excluded", quantity=QuantityName.EFFICIENCY, **facts)
    one, two = view(comparison(rows[0], replace(rows[1], reason=of_reference))).explanations
    assert (one.subject, two.subject) == ("mnist_cnn/ddp on 1 GPU", "mnist_cnn/ddp on 2 GPUs")
    assert "deviate by 5.0 %" in one.reason
    assert "on 1 GPU, the reference of E, deviate by 10 %" in two.reason


def test_rows_alike_but_for_their_numbers_are_told_once_with_their_causes() -> None:
    slower = replace(ALL_REDUCE, lost_s=0.016, after_s=0.019)
    lost = [
        entry(Verdict.REGRESSED, gpus=2, causes=[ALL_REDUCE]),
        entry(Verdict.REGRESSED, gpus=4, causes=[slower]),
        entry(Verdict.REGRESSED, gpus=8, causes=[replace(ALL_REDUCE, kind=CauseKind.NVLINK)]),
    ]
    shown = view(comparison(*lost))
    assert [len(found.rows) for found in shown.explanations] == [2, 1]
    assert shown.explanations[0].causes[0].line == whole_line(slower, "cuda")
    assert dict(shown.headline)["cause"].startswith("exposed communication +14 ms to +16 ms")


def test_what_to_do_next_is_said_once() -> None:
    other = replace(ALL_REDUCE, remedy=Remedy("storage"))
    without = replace(ALL_REDUCE, remedy=None)
    causes = {2: [ALL_REDUCE, ALL_REDUCE], 4: [other, ALL_REDUCE], 8: [without]}
    lost = [entry(Verdict.REGRESSED, gpus=gpus, causes=own) for gpus, own in causes.items()]
    shown = view(comparison(*lost))
    steps = [cause.next_step for found in shown.explanations for cause in found.causes]
    assert [step for step in steps if step] == [next_step(other)]
    assert dict(shown.headline)["next"] == next_step(ALL_REDUCE)
    in_full = [line for line in detail_lines((), shown.ranked[0].causes) if "next: " in line]
    assert in_full == [f"   next: {next_step(ALL_REDUCE)}"] * 2


EVERYTHING = replace(
    ALL_REDUCE,
    seen_in=(2, 3),
    evidence=(
        PhaseChange(name="forward", before_s=0.01, after_s=0.02),
        DeviceSymptom(kind=CauseKind.NVLINK, uuid="A", host=None, counter="nvlink_errors", now=79),
        EnvironmentChange(name="torch_version", before=("2.11",), after=("2.12",)),
        PEAK_MEMORY,
    ),
)


@pytest.mark.parametrize("code", [*CAUSES, *NOT_ESTABLISHED])
def test_every_cause_has_words(code: str) -> None:
    cause = replace(EVERYTHING, code=code)
    line = whole_line(cause, "cuda")
    assert ": " in line
    assert "None" not in line
    counted = "GPU-A: 79 new NVLink errors"
    assert evidence(cause) == ("forward 10.0 ms → 20.0 ms", counted, "torch 2.11 → 2.12")


@pytest.mark.parametrize("code", NEXT_STEPS)
def test_every_remedy_has_words(code: str) -> None:
    remedy = Remedy(code=code, hosts=("node1", "node2"), runs=6)
    text = next_step(replace(ALL_REDUCE, remedy=remedy))
    assert text
    assert not set("{}") & set(text)


def test_two_ways_of_one_case_have_names_of_their_own() -> None:
    fast = entry(Verdict.OK, configuration=replace(CNN, precision="bf16"))
    shown = comparison(entry(Verdict.OK), fast, entry(Verdict.OK), entry(Verdict.OK, case="other"))
    names = ["mnist_cnn/ddp (fp32)", "mnist_cnn/ddp (bf16)", "mnist_cnn/ddp (fp32) (2)"]
    assert [row.name for row in view(shown).rows] == [*names, "other/ddp"]
    commands = ("torchrun train.py --batch {batch}", "torchrun train.py --batch {batch} --epochs 2")
    shown = comparison(
        *(entry(Verdict.OK, configuration=replace(CNN, command=each)) for each in commands)
    )
    assert [row.name for row in view(shown).rows] == ["mnist_cnn/ddp", "mnist_cnn/ddp (--epochs 2)"]


@pytest.mark.parametrize(
    "number", ["12.3 %", "41.2 ms", "12 GPUs", "2 ok", "4× V100", "[7.2 %, 12 %]", "− data 0.01"]
)
def test_a_wrapped_number_keeps_its_unit_and_its_name(number: str) -> None:
    text = f"it fell by {number}"
    assert wrapped(text, len(text) - 1) == ["it fell by", f"    {number}"]


# The last with an accent that is a sign of its own.
NAMES = ("mnist_cnn", "\u8a13\u7df4", "entrai\u0302nement")


def test_names_of_wide_signs_and_accents_keep_the_columns_of_comparisons_and_tables() -> None:
    entries = [entry(Verdict.OK, case=name, gpus=2) for name in NAMES]
    lines = text_of(view(comparison(*entries))).splitlines()
    (head,) = [line for line in lines if line.startswith("case ")]
    rows = [line for line in lines if line.startswith(NAMES)]
    columns = {wcswidth(line[: line.index(" ok")]) for line in rows}
    assert (len(rows), columns) == (3, {head.index(" verdict")})
    cells = [(name, str(number), "9 ms") for number, name in enumerate(NAMES, start=9)]
    text = table(("case", "GPUs", "time"), cells)
    assert len({wcswidth(line) for line in text.splitlines()}) == 1, text


def test_a_long_name_stands_above_its_rows_and_leaves_them_the_width_of_the_terminal() -> None:
    name = "transformer_big_with_a_rather_long_name_that_somebody_chose"
    entries = [entry(Verdict.OK, case=name, gpus=gpus) for gpus in (1, 2)]
    compared = text_of(replace(view(comparison(*entries)), screen=Screen(columns=80)))
    cells = ("91.8 ms ±0.6 %", "1394 ±0.6 %", "1.84 [1.82, 1.85]")
    headers = ("case", "GPUs", "step time", "samples/s", "speedup")
    shown = table(headers, [(f"{name}/ddp", str(gpus), *cells) for gpus in (1, 2)], 80)
    assert "\n\n" not in shown
    for lines in (compared.splitlines(), shown.splitlines()):
        assert max(map(len, lines)) <= 80
        assert lines.count(f"{name}/ddp") == 1


def test_colour_adds_escapes_and_nothing_else() -> None:
    plain = view(of_each_verdict(), "data=5ms")
    coloured = text_of(replace(plain, screen=Screen(colour=True)))
    assert "\033[1;31mREGRESSED\033[0m" in coloured
    assert re.sub(r"\033\[[\d;]*m", "", coloured) == text_of(plain)


def test_every_code_of_a_reason_or_note_has_its_words_and_every_word_is_said() -> None:
    package = Path(gpuscale.__file__).parent
    paths = (package / "analysis/scaling.py", *(package / "judge").rglob("*.py"))
    takers = ("Statement.of", "row.blocked", "MatchedRow(key=key).blocked", "without_ratio")
    assert codes_given(paths, *takers) == set(WORDS)
