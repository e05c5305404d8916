"""Judging while it is measured: `pytest --baseline FILE` makes the runs that the verdict needs."""

from pathlib import Path

import pytest
from changing import replace
from measuring import Session, run_pytest, write_case
from test_options import GIVEN

from gpuscale.errors import ExitCode, UsageError
from gpuscale.plugin.exit_status import status_of_verdict, status_without_verdict
from gpuscale.plugin.options import parse_options
from gpuscale.recording import baseline_from_results
from gpuscale.records import (
    Baseline,
    Comparison,
    EntryKey,
    EntryVerdict,
    SpeedupPair,
    Verdict,
)
from gpuscale.store import write_baseline

QUICK = ("--gpus", "1", "--device", "cpu", "--run-seconds", "0.1")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Baseline:
    """A baseline of real runs of the tiny case on this machine."""
    folder = tmp_path_factory.mktemp("recorded")
    write_case(folder, "Case = Tiny")
    session = run_pytest(folder, *QUICK, "--runs", "3")
    assert session.exit_code == 0, session.output
    return baseline_from_results([session.results], name="b", cluster="here", minimum_runs=3)


def judged_session(folder: Path, recorded: Baseline, factor: float) -> Session:
    """A session against a baseline whose step times were that many times the recorded ones."""
    measured = tuple(
        replace(
            entry,
            runs=tuple(replace(run, step_time_s=factor * run.step_time_s) for run in entry.runs),
        )
        for entry in recorded.measured
    )
    elsewhere = tuple(
        replace(entry, configuration=replace(entry.configuration, case="of_another_file"))
        for entry in measured
    )
    write_case(folder, "Case = Tiny")
    write_baseline(folder / "b.json", replace(recorded, measured=measured + elsewhere))
    return run_pytest(folder, *QUICK, "--baseline", "b.json", "--runs", "3:6")


def test_what_is_clearly_fine_stops_after_the_fewest_runs(
    tmp_path: Path, recorded: Baseline
) -> None:
    session = judged_session(tmp_path, recorded, factor=20)
    assert session.exit_code == ExitCode.OK, session.output
    assert len(session.results.runs) == 3
    assert "3 skipped: improved after 3 runs" in session.output
    assert "1 improved (exit code 0)" in session.output
    assert "of_another_file" not in session.output


def test_a_regression_is_called_so_only_after_a_fresh_run(
    tmp_path: Path, recorded: Baseline
) -> None:
    session = judged_session(tmp_path, recorded, factor=1 / 20)
    assert session.exit_code == ExitCode.REGRESSED, session.output
    assert len(session.results.runs) > 3
    assert f"skipped: regressed after {len(session.results.runs)} runs" in session.output
    assert "REGRESSED" in session.output


def test_a_session_that_measures_nothing_comparable_says_so(
    tmp_path: Path, recorded: Baseline
) -> None:
    write_case(tmp_path, "class Case(Tiny):\n    pass\n")
    write_baseline(tmp_path / "b.json", recorded)
    session = run_pytest(tmp_path, *QUICK, "--baseline", "b.json")
    assert session.exit_code == ExitCode.NOTHING_COMPARABLE, session.output
    assert len(session.results.runs) == 3
    assert "no entry in the baseline" in session.output


def test_a_file_that_cannot_be_imported_keeps_a_good_verdict_from_ending_with_0(
    tmp_path: Path, recorded: Baseline
) -> None:
    fast = tuple(
        replace(
            entry, runs=tuple(replace(run, step_time_s=20 * run.step_time_s) for run in entry.runs)
        )
        for entry in recorded.measured
    )
    write_case(tmp_path, "Case = Tiny")
    write_baseline(tmp_path / "b.json", replace(recorded, measured=fast))
    (tmp_path / "test_broken.py").write_text("import nothing_of_that_name\n")
    options = ("--baseline", "b.json", "--continue-on-collection-errors")
    session = run_pytest(tmp_path, *QUICK, *options)
    assert "1 improved (exit code 1)" in session.output
    assert session.exit_code == pytest.ExitCode.TESTS_FAILED, session.output


def test_an_interrupted_session_tells_the_exit_code_that_it_ends_with(
    tmp_path: Path, recorded: Baseline
) -> None:
    path = write_case(tmp_path, "Case = Tiny")
    path.write_text(f"{path.read_text()}    raise KeyboardInterrupt\n")
    write_baseline(tmp_path / "b.json", recorded)
    session = run_pytest(tmp_path, *QUICK, "--baseline", "b.json")
    assert session.exit_code == pytest.ExitCode.INTERRUPTED, session.output
    assert "too few runs to look at (1 so far)" in session.output
    assert "more runs" not in session.output
    assert "1 inconclusive (exit code 2)" in session.output


def test_a_baseline_that_cannot_be_read_ends_pytest_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    write_case(tmp_path, "Case = Tiny")
    session = run_pytest(tmp_path, *QUICK, "--baseline", "nowhere.json")
    assert session.exit_code == pytest.ExitCode.USAGE_ERROR
    assert "nowhere.json" in session.output
    assert "Traceback" not in session.output
    assert not (tmp_path / ".gpuscale").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"runs": "4"}, "--baseline needs room for runs that confirm a loss; write --runs 3:8"),
        ({"runs": "5:5"}, "--baseline needs room for runs that confirm a loss"),
        ({"target_ci": "1%"}, "leave out one"),
    ],
)
def test_options_that_leave_no_room_to_confirm_are_refused(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        parse_options(GIVEN | {"runs": None, "baseline": "b.json"} | given)


def test_with_a_baseline_there_are_three_to_eight_runs() -> None:
    options = parse_options(GIVEN | {"runs": None, "baseline": "b.json"})
    assert options.judging is not None
    assert (options.judging.fewest_runs, options.judging.most_runs, options.runs) == (3, 8, 8)
    assert options.stopping is None


def comparison_of(*verdicts: Verdict) -> Comparison:
    unknown = SpeedupPair(speedup=None, efficiency=None)
    return Comparison(
        baseline_name="b",
        baseline_machine="here",
        current_machine="here",
        entries=tuple(
            EntryVerdict(
                key=EntryKey("tiny", "ddp", 2**i),
                verdict=verdict,
                baseline=unknown,
                current=unknown,
            )
            for i, verdict in enumerate(verdicts)
        ),
    )


@pytest.mark.parametrize(
    ("given", "failed", "verdict", "expected"),
    [
        (pytest.ExitCode.OK, "", Verdict.OK, ExitCode.OK),
        (pytest.ExitCode.OK, "", Verdict.REGRESSED, ExitCode.REGRESSED),
        (pytest.ExitCode.TESTS_FAILED, "run", Verdict.OK, ExitCode.INCONCLUSIVE),
        (pytest.ExitCode.TESTS_FAILED, "run", Verdict.REGRESSED, ExitCode.REGRESSED),
        (pytest.ExitCode.TESTS_FAILED, "test", Verdict.OK, pytest.ExitCode.TESTS_FAILED),
        (pytest.ExitCode.INTERRUPTED, "", Verdict.OK, pytest.ExitCode.INTERRUPTED),
        (pytest.ExitCode.INTERNAL_ERROR, "", Verdict.OK, pytest.ExitCode.INTERNAL_ERROR),
        (pytest.ExitCode.NO_TESTS_COLLECTED, "", None, ExitCode.NOTHING_COMPARABLE),
    ],
)
def test_the_exit_code_is_the_verdicts_unless_pytest_has_more_to_say(
    given: int, failed: str, verdict: Verdict | None, expected: int
) -> None:
    status = status_of_verdict(
        given,
        failed_tests=failed == "test",
        failed_runs=failed == "run",
        comparison=None if verdict is None else comparison_of(verdict),
    )
    assert status == expected


@pytest.mark.parametrize(
    ("given", "measured", "valid", "needless", "expected"),
    [
        (pytest.ExitCode.OK, True, True, False, pytest.ExitCode.OK),
        (pytest.ExitCode.OK, True, False, False, pytest.ExitCode.TESTS_FAILED),
        (pytest.ExitCode.OK, False, False, False, pytest.ExitCode.NO_TESTS_COLLECTED),
        (pytest.ExitCode.OK, False, False, True, pytest.ExitCode.OK),
        (pytest.ExitCode.TESTS_FAILED, True, True, False, pytest.ExitCode.TESTS_FAILED),
        (pytest.ExitCode.INTERRUPTED, False, False, False, pytest.ExitCode.INTERRUPTED),
    ],
)
def test_without_a_baseline_a_session_without_numbers_never_ends_with_0(
    given: int, measured: bool, valid: bool, needless: bool, expected: int
) -> None:
    status = status_without_verdict(given, measured=measured, valid=valid, needless=needless)
    assert status == expected
