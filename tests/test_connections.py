"""Changes of NCCL's connections: evidence if communication takes longer, and shown with phases."""

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from builders import CNN, phased_run, phases, results, shown_text
from builders.causes import SLOW_LINK, diagnosed, night_of, well
from changing import replace
from measuring import Session, command_case, run_pytest, write_case
from nccl_speaks import CASE, SAID, SPEAK
from test_diagnose_causes import row, step

from gpuscale.analysis.step_parts import Step
from gpuscale.judge.diagnose.causes import environment, lost_parts
from gpuscale.judge.diagnose.row_evidence import RowEvidence
from gpuscale.records import NodeEvidence, Run
from gpuscale.reports import cause_evidence, cause_words

WELL = {
    "GDRDMA": "on",
    "NVLS": "on",
    "NVLS channels": "16",
    "adapters": "mlx5_0:1/IB, mlx5_1:1/IB",
    "channels": "24",
    "library": "NCCL 2.28.9+cuda13.0",
    "rings": "12 × 22/22 GB/s over NVL/PIX",
    "transport between nodes": "NET/IB",
    "transport inside nodes": "P2P/CUMEM",
}
Said = dict[str, str]


def nodes(**said: Said) -> tuple[NodeEvidence, ...]:
    return tuple(NodeEvidence(host=host, connections=own) for host, own in said.items())


def with_nodes(
    after: Step, then: tuple[NodeEvidence, ...], now: tuple[NodeEvidence, ...]
) -> RowEvidence:
    known = row(after)
    before, after_it = (
        tuple(replace(run, nodes=nodes) for run in runs)
        for runs, nodes in ((known.point.runs_before, then), (known.point.runs_after, now))
    )
    point = replace(known.point, runs_before=before, runs_after=after_it)
    return replace(known, points={known.entry.key.gpus: point})


def evidence(
    then: tuple[NodeEvidence, ...], now: tuple[NodeEvidence, ...], after: Step | None = None
) -> list[str]:
    """Return the evidence that is shown below the causes of a row."""
    known = with_nodes(after or step(communication_s=3.0), then, now)
    return [text for cause in lost_parts(known, ()) for text in cause_evidence.evidence(cause)]


@pytest.mark.parametrize(
    ("worse", "said"),
    [
        ({"NVLS": "off"}, ["NVLS on → off"]),
        ({"GDRDMA": "partly"}, ["GDRDMA on → partly"]),
        ({"channels": "16", "GDRDMA": "off"}, ["GDRDMA on → off", "channels 24 → 16"]),
        ({"library": "NCCL 2.29.3"}, ["library NCCL 2.28.9+cuda13.0 → NCCL 2.29.3"]),
        ({}, []),
    ],
)
def test_what_changed_is_evidence_if_communication_lost_time(worse: Said, said: list[str]) -> None:
    then, now = nodes(n1=WELL, n2=WELL), nodes(n1=WELL | worse, n2=WELL | worse)
    assert evidence(then, now) == said
    of_data = evidence(then, now, step(data_s=3.0))
    assert not {*said} & {*of_data}
    assert evidence(nodes(n1={}), now) == [], "nothing is known of the baseline"


def test_what_changed_may_explain_a_loss_if_the_parts_of_a_step_are_unknown() -> None:
    then, now = nodes(n1=WELL), nodes(n1=WELL | {"NVLS": "off"})
    known = with_nodes(step(communication_s=3.0), then, now)
    assert [*environment(known, ())] == []
    gpus = known.entry.key.gpus
    unknown = replace(known, points={gpus: replace(known.point, changes={})})
    (cause,) = environment(unknown, ())
    assert cause_words.headline(cause) == "changed: NVLS on → off"


def test_a_comparison_has_the_change_below_its_cause() -> None:
    rng = np.random.default_rng(1)
    before = well(rng, [1, 4], deviation=0.003)
    now = night_of(rng, [4], 6, SLOW_LINK, deviation=0.003)

    def on_nodes(runs: tuple[Run, ...], **said: Said) -> tuple[Run, ...]:
        return tuple(replace(each, nodes=nodes(**said)) for each in runs)

    before = replace(before, runs=on_nodes(before.runs, n1=WELL, n2=WELL))
    now = replace(now, runs=on_nodes(now.runs, n1=WELL, n3=WELL | {"GDRDMA": "off"}))
    (cause, *_) = diagnosed(before, now)[4].causes
    assert cause.kind == "communication"
    assert cause_evidence.evidence(cause) == ("GDRDMA on → off on n3",)


def test_the_phases_show_how_the_ranks_were_connected() -> None:
    other = {name: text for name, text in WELL.items() if name != "library"}
    made = phased_run([phases(forward_s=0.01)] * 2, communication_s=0.01)
    known = replace(made, nodes=nodes(n1=WELL, n2=other))
    text = " ".join(shown_text(results(known), phases=True).split())
    assert text.count("GDRDMA on, NVLS on, NVLS channels 16, ") == 1
    assert f"{known.label}: GDRDMA on" in text
    assert "library NCCL 2.28.9+cuda13.0" in text
    without = shown_text(results(replace(known, nodes=nodes(n1={}))), phases=True)
    assert "library" not in without
    # A command has no phases.
    by_command = replace(CNN, strategy="command")
    alone = replace(known, configuration=by_command, ranks=(), windows=(), unsynced_windows=())
    assert "channels 24" in shown_text(results(alone), phases=True)


SHORT = ("--device", "cpu", "--run-seconds", "0.3", "--strategy", "ddp,command", "--gpus")


def said_in(session: Session) -> list[Mapping[str, str]]:
    """Return the connections that each run's node has read from the log."""
    return [node.connections for run in session.results.runs for node in run.nodes]


def test_the_log_of_an_earlier_run_is_not_taken_for_that_of_a_later_one(tmp_path: Path) -> None:
    # The trial before the first run, which makes a model too, has no such variables.
    first = "'NCCL_DEBUG' in os.environ and not os.path.exists('said')"
    once = f"if {first}:\n            speak(*LINES)\n            open('said', 'w').close()"
    path = write_case(tmp_path, CASE.replace("speak(*LINES)", once))
    session = run_pytest(tmp_path, str(path), *SHORT, "1", "--runs", "2").ended()
    assert said_in(session) == [SAID, {}]
    assert not any(name.startswith("NCCL_") for name in session.results.environment.variables)


def test_the_log_of_ranks_that_fail_is_kept_too(tmp_path: Path) -> None:
    case = CASE.replace("return super", "raise RuntimeError('no more'); super")
    session = run_pytest(tmp_path, str(write_case(tmp_path, case)), *SHORT, "2", "--runs", "1")
    assert [run.is_valid for run in session.results.runs] == [False]
    assert said_in(session) == [SAID]


def test_processes_of_a_command_say_how_they_are_connected(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        f"{SPEAK}\nimport json, time\nspeak(*LINES)\n"
        "for step in range(10**6):\n"
        "    time.sleep(0.01)\n"
        "    print('GPUSCALE', json.dumps({'step': step}), flush=True)\n"
    )
    case = command_case("Train", f"{sys.executable} {script}", batch=8)
    (tmp_path / "test_train.py").write_text(case)
    session = run_pytest(tmp_path, "test_train.py", *SHORT, "1", "--runs", "1").ended()
    assert said_in(session) == [SAID]
