"""The causes of a row whose runs are known exactly: kind, evidence and what to do next."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import CNN, environment, gpu_summary, nights, phases, run, with_values
from builders.causes import diagnosed, row_of
from builders.comparisons import PEAK_MEMORY, entry, peak_memory
from builders.nights import Fault, Night
from changing import replace
from statements import codes_given, known

from gpuscale.analysis.step_parts import Rank, Step
from gpuscale.judge.diagnose import causes as all_causes
from gpuscale.judge.diagnose.causes import device_faults, lost_parts, not_established
from gpuscale.judge.diagnose.causes import environment as environment_changed
from gpuscale.judge.diagnose.row_evidence import RowEvidence
from gpuscale.records import (
    METRICS_BY_NAME,
    EnvironmentChange,
    GpuSummary,
    MetricSpec,
    QuantityName,
    Verdict,
)
from gpuscale.records.cause import CauseKind, DeviceSymptom, PhaseChange, Remedy
from gpuscale.records.evidence import HostLoad, NodeEvidence
from gpuscale.reports.cause_evidence import evidence
from gpuscale.reports.cause_words import NEXT_STEPS, NOT_ESTABLISHED, WORDS, next_step, whole_line


def step(
    data_s: float = 1.0,
    h2d_s: float = 1.0,
    communication_s: float = 1.0,
    computing_s: float = 7.0,
    *,
    hosts: Sequence[str] = ("node1", "node1"),
    forward_s: float = 2.0,
    optimizer_s: float = 1.0,
    summaries: Sequence[GpuSummary] = (),
) -> Step:
    """A run whose ranks are all alike; backward is the rest of computing."""
    own = phases(data_s=data_s, h2d_s=h2d_s, forward_s=forward_s, optimizer_s=optimizer_s)
    pace_s = data_s + h2d_s + computing_s
    return Step(
        time_s=pace_s + communication_s,
        communication_s=communication_s if len(hosts) > 1 else None,
        ranks=tuple(
            Rank(rank=n, host=host, device_uuids=(f"GPU-{n}",), pace_s=pace_s, phases=own)
            for n, host in enumerate(hosts)
        ),
        run=replace(run(len(hosts), 9.0), gpu_summaries=tuple(summaries)),
    )


def row(after: Step, *, before: Step | None = None, gpus: int = 2, **more: Any) -> RowEvidence:
    """The evidence of a row with three runs of the step `before` and three of `after`."""
    return row_of((before or step(),) * 3, (after,) * 3, gpus=gpus, **more)


def gpu(**values: float) -> GpuSummary:
    return replace(with_values(gpu_summary(0.9), **values), uuid="GPU-0")


NARROW = [gpu(pcie_width=8, pcie_max_width=16)]


@pytest.mark.parametrize(
    ("after", "code", "kind"),
    [
        (step(data_s=3.0), "late_batches", CauseKind.DATA),
        (step(h2d_s=3.0), "late_copies", CauseKind.DATA),
        (step(data_s=2.0, h2d_s=2.5), "late_copies", CauseKind.DATA),
        (step(data_s=2.5, h2d_s=2.0), "late_batches", CauseKind.DATA),
        # A narrow link makes copies late, and nothing else.
        (step(h2d_s=3.0, summaries=NARROW), "late_copies", CauseKind.PCIE),
        (step(data_s=3.0, summaries=NARROW), "late_batches", CauseKind.DATA),
    ],
)
def test_data_are_late_by_waiting_or_by_copying(after: Step, code: str, kind: CauseKind) -> None:
    (cause,) = lost_parts(row(after), ())
    assert (cause.code, cause.kind) == (code, kind)
    median = after.median.phases
    assert cause.evidence[:2] == (
        PhaseChange(name="waiting", before_s=1.0, after_s=median.data_s),
        PhaseChange(name="copying", before_s=1.0, after_s=median.h2d_s),
    )


@pytest.mark.parametrize(
    ("after", "changes", "remedy"),
    [
        (step(data_s=3.0), {}, "cpu_load"),
        (step(data_s=3.0), {"data": "real"}, "storage"),
        (step(h2d_s=3.0), {}, "copies"),
        (step(communication_s=3.0), {}, "gpu_links"),
        (step(communication_s=3.0), {"device": "cpu"}, "processes_on_host"),
        (step(communication_s=3.0, hosts=("node1", "node2")), {"device": "cpu"}, "network"),
        (step(computing_s=9.0, forward_s=2.6), {}, "doctor_on_hosts"),
        (step(computing_s=9.0, forward_s=2.6), {"device": "cpu"}, "processes_on_hosts"),
    ],
)
def test_causes_have_remedies(after: Step, changes: dict[str, str], remedy: str) -> None:
    made = row(after, configuration=replace(CNN, **changes))
    (cause,) = lost_parts(made, ())
    assert known(cause.remedy).code == remedy
    assert known(cause.remedy).hosts in ((), made.hosts)


def test_a_lost_nvlink_comes_before_a_narrow_pcie_link() -> None:
    def kind(**values: float) -> str:
        before = step(summaries=[gpu(pcie_width=16, nvlink_active_min=6)])
        after = step(communication_s=3.0, summaries=[gpu(**values)])
        (cause,) = lost_parts(row(after, before=before), ())
        return cause.kind

    assert kind(pcie_width=16, nvlink_active_min=6) is CauseKind.COMMUNICATION
    assert kind(pcie_width=8, nvlink_active_min=6) is CauseKind.PCIE
    assert kind(pcie_width=8, nvlink_active_min=5) is CauseKind.NVLINK


def test_lost_xgmi_links_and_their_errors_are_named_where_communication_is_slower() -> None:
    before = step(summaries=[gpu(xgmi_active_min=7, xgmi_errors=0)])
    for values, words in (
        ({"xgmi_active_min": 6, "xgmi_errors": 0}, "6 XGMI links active, 7 in the baseline"),
        ({"xgmi_active_min": 7, "xgmi_errors": 3}, "XGMI errors"),
    ):
        after = step(communication_s=3.0, summaries=[gpu(**values)])
        (cause,) = lost_parts(row(after, before=before), ())
        assert cause.kind is CauseKind.XGMI
        assert words in " ".join([whole_line(cause, "cuda"), *evidence(cause)])


@pytest.mark.parametrize(
    ("after", "phase"),
    [
        (step(computing_s=9.0, forward_s=4.0), "forward"),
        (step(computing_s=9.0, forward_s=3.7), "forward"),
        (step(computing_s=9.0), "backward"),
        (step(computing_s=9.0, optimizer_s=3.0), "optimizer"),
        (step(computing_s=9.0, forward_s=3.5), None),
        # The backward pass got shorter.
        (step(computing_s=9.0, forward_s=4.5), "forward"),
        # It gave back what the optimizer took, which counts none the less.
        (step(computing_s=9.0, forward_s=4.0, optimizer_s=1.6), None),
    ],
)
def test_a_phase_with_most_of_the_loss_points_to_the_script(after: Step, phase: str | None) -> None:
    (cause,) = lost_parts(row(after), ())
    assert cause.phase == phase
    assert (known(cause.remedy).code == "script") is (phase is not None)
    assert (f"computing ({phase}) +2.0 s" in whole_line(cause, "cuda")) is (phase is not None)


def test_a_phase_that_is_most_of_the_step_is_named_and_the_script_if_the_others_stayed() -> None:
    def runs(forward_s: float, backward_s: float) -> list[Step]:
        own = [(forward_s * n, (forward_s + 0.5 + backward_s) * n) for n in (0.95, 1, 1.05)]
        return [step(computing_s=c, forward_s=f, optimizer_s=0.5, hosts=["node1"]) for f, c in own]

    for factor, backward_s, remedy in (
        # Only the forward pass got longer, while runs deviate by 5 %.
        *((2.2, 1.5, "script"), (1.3, 1.5, "script")),
        # All phases did, as a slower host would make them.
        *((1.3, 2.0, "doctor_on_hosts"), (1.3, 1.9, "doctor_on_hosts")),
    ):
        (cause,) = lost_parts(row_of(runs(18, 1.5), runs(18 * factor, backward_s), gpus=1), ())
        assert "computing (forward) +" in whole_line(cause, "cuda")
        assert known(cause.remedy).code == remedy


def test_dp_has_its_transfers_inside_computing_on_more_than_one_gpu() -> None:
    by_dp = replace(CNN, strategy="dp")
    alone, before = step(computing_s=9.0, hosts=("node1",)), step(hosts=("node1",))
    inside = []
    for gpus, configuration in ((2, by_dp), (1, by_dp), (2, CNN)):
        known = row(alone, before=before, gpus=gpus, configuration=configuration)
        (cause,) = lost_parts(known, ())
        inside.append(cause.includes is not None)
    assert inside == [True, False, False]


@pytest.mark.parametrize(
    ("finding", "code"), [(PEAK_MEMORY, "other_metrics"), (None, "within_noise")]
)
def test_without_lost_time_metrics_or_noise_explain(finding: MetricSpec | None, code: str) -> None:
    lost = [peak_memory(Verdict.REGRESSED)]
    said = entry(Verdict.REGRESSED, gpus=2, finding=finding, metrics=lost)
    (cause,) = not_established(row(step(), said=said), ())
    assert cause.code == code
    assert known(cause.remedy).runs == (6 if code == "within_noise" else None)
    assert [*not_established(row(step(), said=said), [replace(cause, lost_s=0.1)])] == []


def test_lost_time_explains_a_metric_only_if_that_is_the_communication() -> None:
    for finding, codes in (
        (None, ("communication", "late_batches")),
        (METRICS_BY_NAME["exposed_communication_s"], ("communication",)),
        (PEAK_MEMORY, ()),
    ):
        said = entry(Verdict.REGRESSED, gpus=2, finding=finding)
        known = row(step(communication_s=3.0, data_s=3.0), said=said)
        assert {cause.code for cause in lost_parts(known, ())} == {*codes}


def test_a_fault_that_explains_lost_time_is_not_said_again() -> None:
    worn = gpu(pcie_width=8, pcie_max_width=16, ecc_uncorrected=1)
    known = row(step(h2d_s=3.0, summaries=[worn]))
    late, both = [*lost_parts(known, ())], [CauseKind.PCIE, CauseKind.MEMORY_ERRORS]
    assert [cause.kind for cause in device_faults(known, late)] == both[1:]
    assert [cause.kind for cause in device_faults(known, ())] == both


def test_hosts_of_ranks_are_compared_and_else_those_of_environments() -> None:
    moved = row(step(hosts=("node1", "node2")))
    (cause,) = environment_changed(moved, ())
    assert cause.evidence == (EnvironmentChange(name="host", before=("node1",), after=("node2",)),)
    nowhere = replace(moved.point, environments_after=(replace(environment(), host=None),))
    assert [*environment_changed(replace(moved, points={2: nowhere}), ())] == [cause]
    assert [*environment_changed(row(step()), ())] == []


@pytest.mark.parametrize(
    ("device", "command", "quantity", "remedy"),
    [
        ("cuda", None, QuantityName.THROUGHPUT, "doctor_on_hosts"),
        ("cuda", None, QuantityName.EFFICIENCY, "gpu_links"),
        ("cpu", None, QuantityName.EFFICIENCY, "processes_on_host"),
        ("cpu", "python a.py", QuantityName.THROUGHPUT, "command_or_hosts"),
        ("cpu", "python a.py", QuantityName.EFFICIENCY, "command_or_hosts"),
    ],
)
def test_a_command_is_suspected_before_hosts_and_links(
    device: str, command: str | None, quantity: QuantityName, remedy: str
) -> None:
    made = row_of([], [], gpus=2, configuration=replace(CNN, command=command, device=device))
    made = replace(made, entry=replace(made.entry, changed_quantity=quantity))
    (cause,) = not_established(made, ())
    assert cause.code == ("no_phases_of_commands" if command else "no_phases")
    assert known(cause.remedy).code == remedy
    # Without ranks, the environment says where to look.
    nowhere = ("gpu_links", "processes_on_host")
    assert known(cause.remedy).hosts == (() if remedy in nowhere else ("node1",))


@pytest.mark.parametrize(
    ("fault", "telemetry", "codes"),
    [
        (Fault(computing=1.22, clock=0.82), True, ["clocks_without_phases"]),
        (Fault(computing=1.22, clock=0.95), True, ["no_phases_of_commands"]),
        (Fault(computing=1.22, ecc_uncorrected=2), True, ["device_fault", "no_phases_of_commands"]),
        (Fault(computing=1.22, clock=0.82), False, ["no_phases_of_commands"]),
        (Fault(communication_s=0.02, clock=0.82), True, ["no_phases_of_commands"]),
    ],
)
def test_counters_of_gpus_are_looked_at_though_the_phases_of_a_command_are_unknown(
    fault: Fault, telemetry: bool, codes: list[str]
) -> None:
    ran = replace(nights.CNN, strategy="command", command="python train.py")
    well = Night(job="1001", runs=6, configurations=(ran,), phases=False, telemetry=telemetry)
    now = nights.results_of_night(replace(well, job="2001", day=30, runs=3, fault=fault))
    causes = diagnosed(nights.baseline_of(well), now)[4].causes
    assert [cause.code for cause in causes] == codes
    for cause in causes:
        for symptom in cause.evidence:
            assert not isinstance(symptom, DeviceSymptom) or symptom.host == "node1"


def test_every_code_that_a_finder_gives_has_its_words_and_no_words_are_left_over() -> None:
    paths = [*Path(all_causes.__file__).parent.glob("*.py")]
    assert codes_given(paths, "_open", "Cause", "structs.replace") == {*WORDS, *NOT_ESTABLISHED}
    assert codes_given(paths, "Remedy") == set(NEXT_STEPS)


def test_computing_that_hides_communication_says_how_much_that_gave_back() -> None:
    (cause,) = lost_parts(row(step(communication_s=0.5, computing_s=9.0)), ())
    line = whole_line(cause, "cuda")
    assert line.startswith("computing (backward) +1.5 s (100 % of the 1.5 s that got longer): ")
    assert "takes 9.00 s a step (before: 7.00 s), 500 ms of it taken back by shorter" in line


def test_other_processes_are_advised_only_if_the_hosts_are_not_known_to_be_idle() -> None:
    on_cpu = replace(CNN, device="cpu")
    seen = row(step(computing_s=9.0, forward_s=2.6), configuration=on_cpu)
    # Idle, busy once, unknown once, and never recorded.
    for loads, others in (((0.0, 0.1), False), ((0.0, 1.5), True), ((0.0, None), True), ((), True)):
        hosts = [HostLoad(other_cores=cores, cores=4) for cores in loads]
        nodes = (NodeEvidence(host="node1", load=load) for load in hosts)
        runs = tuple(replace(run(2, 9.0, configuration=on_cpu), nodes=(node,)) for node in nodes)
        point = replace(seen.point, runs_after=runs or seen.point.runs_after)
        known = replace(seen, points={2: point})
        (cause,) = lost_parts(known, ())
        said = next_step(known.informed(cause))
        assert ("other processes" in said) is others
        assert "cores that ranks share" in said


def test_a_changed_script_is_the_first_next_step() -> None:
    seen = row(step(computing_s=9.0, forward_s=2.6))
    sides = (replace(environment(), scripts={"train.py": name}) for name in ("0a", "1b"))
    then, now = ((each,) for each in sides)
    point = replace(seen.point, environments_before=then, environments_after=now)
    seen = replace(seen, points={2: point})
    (cause,) = lost_parts(seen, ())
    said = next_step(seen.informed(cause))
    assert said.startswith("look at what changed in train.py; if that is not it, run 'gpuscale")
    of_model = replace(cause, remedy=Remedy("script"))
    assert next_step(seen.informed(of_model)).startswith("look at what changed in train.py, the")
    assert next_step(of_model).startswith("look at what changed in the script, the model")
    a_link = replace(cause, kind=CauseKind.NVLINK)
    assert "train.py" not in next_step(seen.informed(a_link))
