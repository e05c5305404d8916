"""The first lines of a comparison: the verdict, both sides, and only what is known."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
from builders import CNN, environment, measured
from builders.comparisons import (
    ALL_REDUCE,
    advice,
    comparison,
    entry,
    headline,
    noisy,
    view,
    viewed,
)
from changing import replace

from gpuscale.judge.compare import compare
from gpuscale.judge.sides import as_baseline
from gpuscale.records import (
    EntryVerdict,
    EnvironmentChange,
    Estimate,
    FieldChange,
    Finding,
    HostLoad,
    Origin,
    QuantityName,
    Statement,
    Verdict,
)
from gpuscale.records.cause import Cause, CauseKind, DeviceSymptom, Remedy
from gpuscale.records.verdict import BaselineKind
from gpuscale.reports.cause_evidence import evidence
from gpuscale.reports.cause_words import whole_line
from gpuscale.reports.comparison.text_markdown_junit import text as text_of
from gpuscale.reports.reason_words import statement_text

AGAIN = "measure again once the host is idle"
BOTH_AGAIN = f"{AGAIN}, and the baseline too"
MORE_RUNS = "make about 3 more runs (other options as before; in a job)"
HEAVY = HostLoad(other_cores=1.5, cores=2)
SMALL = Estimate(value=-0.01, low=-0.06, high=0.04)
LEAVE = "or leave it at that: any loss of E is below 6.0 %"
BUSY = Statement.of("busy_host", busy=2, made=3, on="n2", load=HEAVY)
SIDES = ("busy_host_before", "busy_host")
MORE = Remedy("more_runs", runs=6)
NOISE = Cause(kind=CauseKind.NOT_ESTABLISHED, code="within_noise", remedy=MORE)


def slower(gpus: int) -> EntryVerdict:
    lost = Estimate(value=-0.08, low=-0.1, high=-0.06)
    made = entry(Verdict.REGRESSED, gpus=gpus, finding=Finding.SINGLE_GPU_SLOWDOWN, change=lost)
    return replace(made, changed_quantity=QuantityName.THROUGHPUT)


def first_line(*rows: EntryVerdict) -> tuple[str, str]:
    return next(iter(headline(comparison(*rows)).items()))


def test_rows_are_faster_by_their_throughput_and_a_better_scaling_is_told_as_such() -> None:
    up = Estimate(value=0.052, low=0.03, high=0.07)
    one, two, four = (
        replace(entry(Verdict.IMPROVED, gpus=gpus), change=up, changed_quantity=quantity)
        for gpus, quantity in (
            (1, QuantityName.THROUGHPUT_ON_1),
            (2, QuantityName.THROUGHPUT),
            (4, QuantityName.EFFICIENCY),
        )
    )
    assert first_line(one, two) == ("improved", "2 of 2 rows: 5.2 % more samples/s")
    assert first_line(four) == ("improved", "1 of 1 row: E rose by 5.2 %")
    mixed = "3 of 3 rows: 5.2 % more samples/s (2 rows); E rose by 5.2 % (1 row)"
    assert first_line(one, two, four) == ("improved", mixed)


def test_a_loss_goes_before_a_doubt_and_a_doubt_before_a_pass() -> None:
    doubt, ok = entry(Verdict.INCONCLUSIVE), entry(Verdict.OK)
    assert first_line(ok, doubt, slower(2))[0] == "REGRESSED"
    assert first_line(ok, doubt, entry(Verdict.MISSING))[0] == "INCONCLUSIVE"
    assert first_line(ok, entry(Verdict.MISSING))[0] == "MISSING"
    assert first_line(ok, entry(Verdict.IMPROVED))[0] == "ok"
    assert first_line(entry(Verdict.CONSISTENT))[0] == "consistent"
    assert first_line()[0] == "NOTHING COMPARED"


def test_a_loss_of_training_says_on_how_many_devices() -> None:
    one, two = slower(1), replace(slower(2), finding=Finding.SLOWER_TRAINING)
    both = view(comparison(one, two))
    assert "training on 1 and 2 GPUs lost 8.0 % of its samples/s" in both.headline[0][1]
    assert {row.short_reason for row in both.rows} == {"slower training"}
    # If only one row's loss has a first night, the table says which.
    assert ", from " not in first_line(replace(one, since="2026-11-05"), two)[1]
    both_since = (replace(each, since="2026-11-05") for each in (one, two))
    assert first_line(*both_since)[1].endswith(", from 2026-11-05 on")
    # That every GPU is slower is said where a row of several shows it.
    every = first_line(one, slower(2), replace(slower(4), finding=Finding.SLOWER_TRAINING))[1]
    assert "every GPU lost 8.0 % of its samples/s [6.0 %, 10 %] (2 rows)" in every


def test_an_established_cause_stands_first_and_of_several_that_which_cost_most() -> None:
    rows = [replace(slower(gpus), causes=(NOISE,)) for gpus in (1, 2, 4)]
    assert headline(comparison(*rows))["cause"].startswith("not known: ")
    rows[2] = replace(rows[2], causes=(ALL_REDUCE, NOISE))
    assert "+14 ms" in headline(comparison(*rows))["cause"]
    computing = Cause(kind=CauseKind.COMPUTE, code="computing", lost_s=0.004, after_s=0.1)
    for lost_s, words in ((0.004, "communication +14 ms"), (0.1, "computing +100 ms")):
        one = replace(slower(1), causes=(replace(computing, lost_s=lost_s),))
        assert words in headline(comparison(one, replace(slower(2), causes=(ALL_REDUCE,))))["cause"]


COMMAND_OR_HOSTS = Remedy("command_or_hosts", ("n1",))
OF_COMMAND = replace(NOISE, code="no_phases_of_commands", remedy=COMMAND_OR_HOSTS)
NEW_DRIVER = EnvironmentChange(name="driver", before=("590.1",), after=("595.2",))
CHANGED = Cause(kind=CauseKind.ENVIRONMENT, code="environment_changed", evidence=(NEW_DRIVER,))


def test_a_loss_without_a_cause_says_why_it_is_not_known() -> None:
    rows = [replace(slower(gpus), causes=(OF_COMMAND, CHANGED)) for gpus in (1, 2)]
    said = headline(comparison(*rows))["cause"]
    assert said == "not known: gpuscale sees no phases of a command; both rows"
    doubt = replace(entry(Verdict.INCONCLUSIVE), causes=())
    assert "cause" not in headline(comparison(doubt))


def test_what_is_not_known_has_no_line() -> None:
    shown = replace(comparison(entry(Verdict.OK)), before=Origin(), after=Origin())
    lines = headline(shown)
    assert lines.keys() == {"ok", "baseline", "now"}
    assert lines["baseline"] == f"nightly; {shown.baseline_machine}"
    assert lines["now"] == shown.current_machine
    assert headline(replace(shown, baseline_kind="results")).keys() == {"ok", "before", "now"}


def test_the_first_line_of_open_rows_names_the_loss_that_their_intervals_exclude() -> None:
    few = Statement.of(
        "too_few_of_all_runs",
        valid=2,
        made=4,
        failures={"killed": 2},
        otherwise=Statement.of("single_run"),
    )
    for lows, reason, words in (
        ((-0.08, -0.061), None, "any loss of E is below 8.0 %"),
        ((-0.08, None), None, ""),
        ((-0.08, -0.52), None, ""),
        ((-0.08, -0.061), few, ""),
    ):
        changes = [Estimate(value=-0.03, low=low, high=low and 0.02) for low in lows]
        opened = [entry(Verdict.INCONCLUSIVE, reason=reason, change=each) for each in changes]
        said = first_line(*opened)[1]
        assert words in said
        assert ("any loss" in said) is bool(words)


def test_what_makes_a_verdict_doubtful_stands_in_the_headline_the_heaviest_first() -> None:
    swapped = Statement.of("newer_baseline")
    shown = view(comparison(slower(1), notes=[BUSY, swapped]))
    assert dict(shown.headline)["beware"] == "; ".join(map(statement_text, (swapped, BUSY)))
    assert shown.notes == ()
    assert "earlier results first" in dict(shown.headline)["next"]
    still_open = comparison(noisy("further_runs", needed=3), notes=[swapped])
    assert headline(still_open)["next"].startswith("make about 3 more runs")


@pytest.mark.parametrize(
    ("codes", "kind", "open_row", "loss"),
    [
        (SIDES, "results", BOTH_AGAIN, AGAIN),
        (SIDES, "baseline", BOTH_AGAIN, AGAIN),
        (SIDES, "nights", AGAIN, AGAIN),
        (SIDES[1:], "results", AGAIN, AGAIN),
        (SIDES[:1], "results", "measure the baseline again once the host is idle", ""),
        (SIDES[:1], "nights", MORE_RUNS, ""),
    ],
)
def test_the_side_with_a_busy_host_is_to_be_measured_again(
    codes: Sequence[str], kind: BaselineKind, open_row: str, loss: str
) -> None:
    notes = [Statement(code, BUSY.facts) for code in codes]
    for row, words in ((entry(Verdict.INCONCLUSIVE), open_row), (slower(1), loss)):
        judged = replace(comparison(row, notes=notes), baseline_kind=kind)
        assert headline(judged).get("next", "") == words


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (ALL_REDUCE, "if it is REGRESSED again, run 'gpuscale doctor' on each host; "),
        (OF_COMMAND, "if it is REGRESSED again, look at what changed in the command, "),
        (NOISE, ""),
    ],
)
def test_a_loss_with_a_cause_keeps_its_remedy_if_a_host_was_busy(cause: Cause, words: str) -> None:
    lines = headline(comparison(replace(slower(1), causes=(cause,)), notes=[BUSY]))
    assert lines["next"] == AGAIN
    assert lines.get("then", "").startswith(words)
    assert "busy" in lines["beware"]


@pytest.mark.parametrize(
    ("high", "kind", "is_asked"),
    [(-0.02, "baseline", True), (-0.06, "baseline", False), (-0.02, "nights", False)],
)
def test_a_loss_that_may_be_half_of_itself_is_measured_again_first(
    high: float, kind: BaselineKind, is_asked: bool
) -> None:
    lost = replace(slower(1), causes=(ALL_REDUCE,))
    lost = replace(lost, change=Estimate(value=-0.08, low=-0.14, high=high))
    steps = headline(replace(comparison(lost), baseline_kind=kind))
    assert (steps["next"] == "measure again") is is_asked
    assert steps.get("then", "").startswith("if it is REGRESSED again, run") is is_asked


DRIVER = EnvironmentChange(name="driver_version", before=("575",), after=("595",))
UNDONE, DOCTOR = "measure again with the change undone", "run 'gpuscale doctor'"


@pytest.mark.parametrize(
    ("name", "kind", "steps"),
    [
        ("cases_revision", CauseKind.COMMUNICATION, (DOCTOR, UNDONE)),
        ("cases_revision", CauseKind.NOT_ESTABLISHED, (UNDONE, DOCTOR)),
        ("nccl_version", CauseKind.COMPUTE, (DOCTOR, UNDONE)),
        ("NCCL_ALGO", CauseKind.NVLINK, (UNDONE, DOCTOR)),
        ("power_limit_w", CauseKind.DATA, (DOCTOR, UNDONE)),
        ("power_limit_w", CauseKind.SLOW_RANK, (UNDONE, DOCTOR)),
        ("driver_version", CauseKind.COMPUTE, (UNDONE, DOCTOR)),
    ],
)
def test_a_change_that_cannot_have_led_to_the_cause_is_undone_last(
    name: str, kind: CauseKind, steps: tuple[str, str]
) -> None:
    change = replace(DRIVER, name=name)
    row = replace(slower(1), causes=(replace(ALL_REDUCE, kind=kind),))
    changed = Statement.of("environment_changed", changes=[change])
    lines = headline(comparison(row, notes=[changed]))
    assert lines["next"].startswith(steps[0])
    assert lines["or"].startswith(steps[1])


def test_a_change_on_the_night_that_another_row_lost_is_not_the_first_to_be_undone() -> None:
    then = Statement.of("level_lost", loss=0.1, since="2026-11-05", changed=[DRIVER])
    rows = (replace(slower(2), reason=then), replace(slower(1), causes=(ALL_REDUCE,)))
    judged = replace(comparison(*rows), baseline_kind="nights")
    assert headline(judged)["next"].startswith(DOCTOR)
    alone = replace(rows[0], causes=(ALL_REDUCE,))
    assert headline(replace(judged, entries=(alone,)))["next"].startswith(UNDONE)


@pytest.mark.parametrize(
    ("verdict", "words"),
    [(Verdict.INCOMPARABLE, "compare with a baseline"), (Verdict.MISSING, "name results")],
)
def test_where_no_row_was_judged_a_quiet_host_is_no_remedy(verdict: Verdict, words: str) -> None:
    for code in SIDES:
        busy = Statement(code, BUSY.facts)
        shown = comparison(entry(verdict), entry(verdict, gpus=1), notes=[busy])
        assert headline(shown)["next"].startswith(words)


@pytest.mark.parametrize(("command", "maker"), [(None, "pytest"), ("a.py", "gpuscale run")])
def test_a_missing_row_is_measured_by_what_measured_others(command: str | None, maker: str) -> None:
    missing = entry(Verdict.MISSING, configuration=replace(CNN, command=command))
    wanted = f", measure them ({maker}), or choose rows by --case"
    assert headline(comparison(missing))["next"].endswith(wanted)


def test_a_loss_that_only_nights_show_points_to_their_history() -> None:
    lost = Statement.of("level_lost", loss=0.1, since="2026-11-05", changed=())
    judged = replace(comparison(replace(slower(1), reason=lost)), baseline_kind="nights")
    assert headline(judged)["next"].startswith("see 'gpuscale history'")


def test_devices_that_show_the_same_are_one_fact_and_others_their_own() -> None:
    link: dict[str, Any] = {"kind": CauseKind.PCIE, "host": "node1", "usual": 16}
    first = DeviceSymptom(uuid="GPU-0", counter="pcie_width", now=4, **link)
    alike = (replace(first, uuid=f"GPU-{number}", now=8) for number in (1, 2, 3))
    slow = replace(first, uuid="GPU-9", counter="pcie_generation", now=2)
    facts = evidence(replace(ALL_REDUCE, evidence=(first, *alike, slow)))
    named = [fact.partition(":")[0] for fact in facts]
    assert named == ["GPU-0 on node1", "3 GPUs on node1", "GPU-9 on node1"]
    assert "PCIe x8, x16" in facts[1]


def test_why_a_cause_is_unknown_is_said_once_and_what_the_headline_leaves_out_stays() -> None:
    why = "gpuscale sees no phases of a command"
    row = replace(slower(1), causes=(OF_COMMAND, CHANGED))
    said = text_of(view(comparison(row)))
    assert said.count(why) == 1
    assert "    1. changed: driver 590.1 → 595.2" in said
    elsewhere = replace(slower(2), causes=(replace(OF_COMMAND, remedy=Remedy("network")),))
    said = text_of(view(comparison(row, elsewhere)))
    assert "    1. cause not established: " + why + "\n       next: test the network" in said


def test_a_machine_has_one_notation_on_both_sides_and_its_host_stands_once() -> None:
    where = replace(environment(), device="cpu", gpus=(), cpu_model="AMD EPYC", cpu_count=2)
    on_cpu = replace(CNN, device="cpu")
    now = replace(measured({1: [0.1] * 3}, configuration=on_cpu), environment=where)
    then = replace(now, environment=replace(where, job_id="then"))
    compared = compare(as_baseline(then, "before"), [now])
    hosts = replace(compared.before, hosts=(str(where.host),))
    lines = headline(replace(compared, before=hosts))
    assert compared.cluster == where.host
    for side in ("baseline", "now"):
        assert lines[side].rpartition("; ")[2] == "2 CPU cores (AMD EPYC)"


def test_time_that_noise_puts_below_zero_is_given_as_it_was_measured() -> None:
    line = whole_line(replace(ALL_REDUCE, before_s=-0.0058, lost_s=0.0228), "cuda")
    assert line.startswith("exposed communication +23 ms")
    assert "17.0 ms a step (before: −5.80 ms)" in line


@pytest.mark.parametrize(("change", "is_named"), [(0.04, False), (-0.003, False), (-0.05, True)])
def test_a_lagging_rank_heads_an_open_row_if_it_is_slower(change: float, is_named: bool) -> None:
    lagging = replace(ALL_REDUCE, kind=CauseKind.SLOW_RANK, code="stragglers")
    uncertain = Estimate(value=change, low=change - 0.1, high=change + 0.1)
    lagging = replace(lagging, remedy=Remedy("doctor_on_hosts", ("node1",)))
    doubt = replace(entry(Verdict.INCONCLUSIVE), change=uncertain, causes=(lagging,))
    said = headline(comparison(doubt))
    assert ("rank 2 slow" in said.get("cause", "")) is is_named
    assert ("not by chance" in said.get("cause", "")) is is_named
    assert ("gpuscale doctor" in said.get("next", "")) is is_named
    # Where a fault was made on purpose, nobody need look for it.
    assert (
        "gpuscale doctor" not in dict(view(comparison(doubt), "slow-rank=2:1.2").headline)["next"]
    )


def test_a_field_has_words() -> None:
    changes = [FieldChange("accumulate", None, 2), FieldChange("compiled", False, True)]
    text = statement_text(Statement.of("other_measurement", differences=changes))
    assert "accumulate: none → 2, compiled: no → yes" in text


def test_the_next_step_of_a_baseline_that_is_too_uneven_can_be_run_as_it_stands() -> None:
    judged = comparison(
        replace(noisy("baseline_runs_differ", deviation=0.05, of_both=0), change=SMALL)
    )
    before = replace(judged.before, files=("baselines/ours.json",))
    judged = replace(judged, before=before, after=replace(judged.after, files=("my night.jsonl",)))
    add = "gpuscale baseline update --add baselines/ours.json"
    assert advice(judged) == (
        "next measure the machine as it was for the baseline, if you can "
        "(other options as before; in a job; about 60 s)\n"
        "run pytest … --results ours-more-$(date +%m%d-%H%M%S).jsonl\n"
        f"then add that to the baseline\nrun {add} ours-more-*.jsonl\n"
        f"then compare again\nrun gpuscale compare baselines/ours.json 'my night.jsonl'\n{LEAVE}"
    )
    assert headline(replace(judged, notes=(BUSY,)))["next"] == AGAIN
    of_itself = Statement.of("same_allocation", name="4739")
    assert advice(replace(judged, notes=(of_itself,))) == (
        f"next measure again into a new file, and compare that\n{LEAVE}"
    )


def test_runs_that_would_settle_a_row_come_before_those_of_the_baseline() -> None:
    uneven = noisy("baseline_runs_differ", deviation=0.05, of_both=0)
    soon = noisy("further_runs", needed=3)
    lower = Estimate(value=-0.2, low=-0.5, high=0.05)
    for rows in ((uneven, soon), (soon, uneven), (soon, replace(uneven, change=lower))):
        step = headline(comparison(*rows))["next"]
        assert re.match(
            r"make about 3 more runs, which may settle only mnist_cnn/ddp( \(2\))? on 4 GPUs \(",
            step,
        )


def test_next_asks_for_the_runs_that_a_row_says_both_sides_need_or_that_may_tell_more() -> None:
    both = replace(noisy("baseline_runs_differ", deviation=0.05, of_both=40), change=SMALL)
    unknown = replace(noisy("unknown_further_runs", too_few=3, in_all=12), change=SMALL)
    for rows in ((unknown,), (both, unknown)):
        step, command, *_, again, last = advice(comparison(*rows)).splitlines()
        assert last == LEAVE
        assert step.startswith("next make about 10 more runs")
        assert command == "run pytest … --runs 12 --resume night.jsonl"
        assert again == "run gpuscale compare night.jsonl night.jsonl"
        assert ("may settle only mnist" in step) is (len(rows) == 2)
    # What is below zero may be a loss, and is settled first, however many runs another row needs.
    lost = Estimate(value=-0.1, low=-0.2, high=-0.01)
    slower = replace(noisy("further_runs", needed=3), change=lost)
    step = headline(comparison(unknown, slower))["next"]
    assert step.startswith("make about 3 more runs, which may settle only mnist_cnn/ddp (2) on 4 ")
    assert advice(comparison(both)) == (
        "next measure the machine as it was for the baseline, if you can "
        "(other options as before; in a job; about 7 min)\n"
        "run pytest … --runs 37 --results night-more-$(date +%m%d-%H%M%S).jsonl\n"
        "then add that to the baseline\n"
        "run gpuscale baseline update --add night.jsonl night-more-*.jsonl\n"
        "then make about 37 more runs (other options as before; in a job; about 7 min)\n"
        "run pytest … --runs 40 --resume night.jsonl\n"
        f"then compare again\nrun gpuscale compare night.jsonl night.jsonl\n{LEAVE}"
    )


def test_further_runs_go_into_a_file_of_their_own_where_several_are_judged() -> None:
    judged = comparison(noisy("further_runs", needed=3))
    judged = replace(judged, after=replace(judged.after, files=("a.jsonl", "b.jsonl")))
    taken = replace(judged, before=replace(judged.before, files=("b-2.jsonl",)))
    assert "--results b-3.jsonl\n" in advice(taken)
    assert advice(judged) == (
        "next make about 3 more runs (other options as before; in a job)\n"
        "run pytest … --runs 3 --results b-2.jsonl\nthen compare all of them\n"
        "run gpuscale compare night.jsonl a.jsonl b.jsonl b-2.jsonl\n"
        "or leave it at that: any loss of E is below 8.0 %"
    )


@pytest.mark.parametrize(
    ("typed", "advised"),
    [
        ("pytest bench_cases --gpus 1,2", "pytest bench_cases --gpus 1,2 OPTIONS"),
        ("pytest --runs=3 --results a.jsonl 'my cases'", "pytest 'my cases' OPTIONS"),
        ("pytest --runs 3 cases --resume a.jsonl", "pytest cases OPTIONS"),
        (
            "gpuscale run --gpus 2 -- sh -c 'a {gpus}'",
            "gpuscale run --gpus 2 OPTIONS -- sh -c 'a {gpus}'",
        ),
        ("gpuscale run --runs 3 -- train --runs 9", "gpuscale run OPTIONS -- train --runs 9"),
    ],
)
def test_a_command_that_is_known_is_given_whole(typed: str, advised: str) -> None:
    judged = comparison(noisy("further_runs", needed=3))
    judged = replace(judged, after=replace(judged.after, files=("tonight.jsonl",)))
    made = replace(measured({1: [0.1, 0.1], 4: [0.11, 0.11]}), started_as=typed)
    told = advice(viewed(judged, made)).splitlines()
    assert told[0] == "next make about 3 more runs (in a job)"
    assert told[1] == f"run {advised.replace('OPTIONS', '--runs 5 --resume tonight.jsonl')}"
    assert told[3] == "run gpuscale compare night.jsonl tonight.jsonl"
    here = replace(judged, after=replace(judged.after, jobs=()))
    assert advice(viewed(here, made)).startswith("next make about 3 more runs\nrun ")
    # Of results that were measured by different commands, none is known.
    other = replace(measured({1: [0.1, 0.1]}, job_id="other"), started_as="pytest others")
    told = advice(viewed(judged, made, other)).splitlines()
    assert told[0] == "next make about 3 more runs (other options as before; in a job)"
    assert told[1] == "run pytest … --runs 5 --resume tonight.jsonl"
    # A session with a baseline judges by itself.
    judging = replace(made, started_as="pytest cases --baseline ours.json")
    told = advice(viewed(judged, judging)).splitlines()
    assert told[2:] == ["or leave it at that: any loss of E is below 8.0 %"]


def test_runs_that_both_sides_need_are_made_in_turn_or_added_to_the_baseline() -> None:
    judged = comparison(noisy("baseline_runs_differ", deviation=0.05, of_both=20))
    between = replace(judged, before=replace(judged.before, files=("then.jsonl",)))
    between = replace(between, baseline_kind="results")
    first, *others, _ = advice(between).splitlines()
    step = "measure the machine as it was for the earlier results, if you can"
    assert first == f"next {step} (other options as before; in a job; about 3 min)"
    assert others == [
        "run pytest … --runs 17 --results then-more-$(date +%m%d-%H%M%S).jsonl",
        "then make a baseline of all that (--weak if it is refused)",
        "run gpuscale baseline record then.jsonl then-more-*.jsonl --cluster before -o before.json",
        "then make about 17 more runs (other options as before; in a job; about 3 min)",
        "run pytest … --runs 20 --resume night.jsonl",
        "then compare again",
        "run gpuscale compare before.json night.jsonl",
    ]
    # Other tools' results tell no time.
    assert advice(viewed(between)).startswith(f"next {step} (other options as before; in a job)\n")
    judged = comparison(replace(judged.entries[0], change=SMALL))
    ours = replace(judged, before=replace(judged.before, files=("ours.json",), fewest_runs=18))
    first, lacking, *_ = advice(ours).splitlines()
    assert first.startswith("next measure the machine as it was for the baseline, if you can (")
    assert lacking == "run pytest … --runs 2 --results ours-more-$(date +%m%d-%H%M%S).jsonl"


@pytest.mark.parametrize(("sessions", "file"), [(1, "a_1-2.jsonl"), (9, "a_1-more-$(")])
def test_nothing_is_measured_into_the_folder_of_a_night(sessions: int, file: str) -> None:
    facts = {"quantity": QuantityName.EFFICIENCY, "of_both_sessions": sessions}
    judged = comparison(noisy("nights_differ", deviation=0.2, **facts))
    of_night = replace(judged, after=replace(judged.after, files=("nights/a_1/results.jsonl",)))
    started_as = "pytest cases --results nights/a_1/results.jsonl --junitxml nights/a_1/junit.xml"
    made = replace(measured({1: [0.1, 0.1]}), started_as=started_as)
    assert f"\nrun pytest cases --runs 6 --results {file}" in advice(viewed(of_night, made))


@pytest.mark.parametrize("kind", ["baseline", "results", "nights"])
@pytest.mark.parametrize("code", ["nights_differ", "other_rows_differ", "once_idle"])
def test_a_row_that_no_run_of_this_session_settles_has_a_next_step(code: str, kind: str) -> None:
    facts = {"deviation": 0.2, "quantity": QuantityName.EFFICIENCY, "of_both_sessions": 12}
    assert advice(replace(comparison(noisy(code, **facts)), baseline_kind=kind)).startswith("next ")


def test_what_is_judged_is_in_no_pattern_of_files_that_become_the_baseline() -> None:
    facts = {"deviation": 0.1, "quantity": QuantityName.EFFICIENCY, "sessions": 1}
    judged = replace(comparison(noisy("nights_assumed", **facts)), baseline_kind="results")
    judged = replace(judged, before=replace(judged.before, files=("well.jsonl",)))
    judged = replace(judged, after=replace(judged.after, files=("well-more-1.jsonl",)))
    assert "baseline record well.jsonl well-more-again-*.jsonl --cluster before" in advice(judged)


def test_one_more_session_is_asked_for_where_it_may_decide_about_a_rank() -> None:
    facts = {"deviation": 0.1, "quantity": QuantityName.EFFICIENCY, "of_both_sessions": 9}
    lags = replace(ALL_REDUCE, kind=CauseKind.SLOW_RANK, code="perhaps_stragglers", remedy=None)
    row = replace(noisy("nights_differ", **facts), causes=[lags])
    told = "next measure again at another time, beside these runs: it may decide about that rank ("
    assert advice(comparison(row)).startswith(told)


@pytest.mark.parametrize("code", ["both_sides_differ", "runs_differ", "baseline_runs_differ"])
def test_where_no_number_of_runs_settles_a_row_quieter_ones_are_asked_for(code: str) -> None:
    uneven = noisy(code, deviation=0.2, runs=40, of_both=68)
    assert advice(comparison(uneven)).splitlines() == [
        "next find what disturbs these runs ('gpuscale doctor')",
        "or leave it at that: any loss of E is below 8.0 %",
    ]
    on_cpu = comparison(replace(uneven, configuration=replace(CNN, device="cpu")))
    on_cpu = replace(on_cpu, before=replace(on_cpu.before, most_runs=180))
    assert advice(on_cpu).splitlines() == [
        "next measure again at another time, beside these runs (other options as before; in a job)",
        "run pytest … --runs 40 --results night-2.jsonl",
        "then compare all of them",
        "run gpuscale compare night.jsonl night.jsonl night-2.jsonl",
        "or leave it at that: any loss of E is below 8.0 %",
    ]


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ((0.9,), "(90 % of the 20 ms that got longer); "),
        ((0.55,), "(55 % of the 20 ms that got longer); no cause found for 45 %; "),
        ((0.5, 0.45), "(50 % of the 20 ms that got longer), and "),
        ((0.7, 0.2), "(70 % of the 20 ms that got longer); "),
    ],
)
def test_a_cause_says_what_it_does_not_explain_and_which_other_is_as_large(
    shares: Sequence[float], words: str
) -> None:
    causes = [replace(ALL_REDUCE, share=share, lost_s=0.02 * share) for share in shares]
    assert words in headline(comparison(entry(Verdict.REGRESSED, causes=causes)))["cause"]
