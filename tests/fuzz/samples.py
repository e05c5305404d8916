"""Valid files that use every field of their format: where the fuzzing of the readers starts."""

from contextlib import suppress
from typing import TypeVar, get_type_hints

import msgspec
from builders import figure, results_text
from builders.nights import CNN, Night, baseline_of, results_of_night
from changing import replace

from gpuscale.records import Failure, HostLoad, NodeEvidence, Results, Tolerances
from gpuscale.records.baseline import BaselineChange, Source, ToleranceOverride
from gpuscale.records.evidence import Library
from gpuscale.records.gpu_and_port_counters import NUMBERS
from gpuscale.records.metrics import OpenMetric
from gpuscale.records.probes import Port, Probe
from gpuscale.records.record import to_json
from gpuscale.store.campaign_folders import SweepJob, SweepRecord
from gpuscale.store.file_formats import encode_baseline

_R = TypeVar("_R", bound=msgspec.Struct)
_NIGHT = Night(job="17", gpus=(1, 2, 8), runs=2, injections=("data=5ms",))
_KILLED = Failure(kind="killed", message="rank 1 was killed", rank=1, host="node1", detail="a\nb")


def samples() -> dict[str, str]:
    return {"results": results_text(_results()), "baseline": _baseline(), "sweep": _sweep()}


def filled(record: _R) -> _R:
    """The record with a value in every field that has none, if a simple value fits the field."""
    values: dict[str, object] = {}
    for name, hint in get_type_hints(type(record), include_extras=True).items():
        if getattr(record, name) in (None, (), {}, ""):
            for value in ("x", "1f1b", 2, 0.5, ("x",), (2,), {"x": "x"}, {"x": 2}, {"x": ("x",)}):
                with suppress(msgspec.ValidationError):
                    values[name] = msgspec.convert(value, hint)
                    break
    return msgspec.structs.replace(record, **values)


def _results() -> Results:
    results = results_of_night(_NIGHT)
    first, *others = results.runs
    metric = OpenMetric(name="busbw", unit="GB/s", more_is_better=True, scaling="rate")
    configuration = filled(replace(first.configuration, metric=metric))
    failed = replace(first, index=9, failure=_KILLED, measured={}, telemetry_absent="no driver")
    failed = replace(failed, configuration=configuration)
    summary = replace(first.gpu_summaries[0], absent=("power",), values=dict.fromkeys(NUMBERS, 1))
    node = NodeEvidence(
        host="n1",
        load=filled(HostLoad(other_cores=1.5, cores=2)),
        ports=(filled(Port(name="mlx5_1 port 1", kind="infiniband")),),
        libraries=(filled(Library(name="NCCL", path="/lib/libnccl.so.2")),),
    )
    ranks = (filled(first.ranks[0]), *first.ranks[1:])
    summaries = (summary, *first.gpu_summaries[1:])
    first = replace(first, gpu_summaries=summaries, nodes=(filled(node),), ranks=ranks)
    where = filled(replace(results.environment, gpus=(filled(results.environment.gpus[0]),)))
    probe = filled(Probe(name="send", host="n1", device="GPU 1", rates=(1e9, 2e9)))
    results = replace(results, environment=where, left_out="cooling failure", probes=(probe,))
    return replace(results, runs=(first, failed, replace(others[0], allocation="18"), *others[1:]))


def _baseline() -> str:
    baseline = baseline_of(replace(_NIGHT, injections=()))
    override = filled(ToleranceOverride(case=CNN.case, metric="speedup", margin=0.03))
    change = BaselineChange(
        at="2026-11-21T03:30:15+00:00",
        reason="new NCCL",
        by="bob",
        replaced=baseline.runs[:1],
        added=("mnist_cnn/ddp on 2 GPUs",),
    )
    return encode_baseline(
        replace(
            baseline,
            source=filled(Source(title="A course")),
            published=(
                replace(figure(1, time_s=145.0), discard_first=1, times_s=(150.0, 145.0), note="x"),
                replace(
                    figure(8, samples_per_s=2650.0, nodes=2),
                    precision="fp16",
                    data="real",
                    nights={"2026-09-01": 2640.0, "2026-09-02": 2660.0},
                ),
                replace(
                    figure(2, samples_per_s=17.0),
                    samples_per_s=None,
                    batch_per_gpu=None,
                    metric=OpenMetric(name="b", more_is_better=True),
                    value=17.0,
                ),
            ),
            tolerances=Tolerances(overrides=(override,)),
            history=(change,),
        )
    )


def _sweep() -> str:
    first = SweepJob(
        node="n1", number=1, job="17", submitted_at_s=1.7e9, ended_at_s=1.8e9, outcome="measured"
    )
    second = replace(first, number=2, is_control=True, outcome="failed", detail="rank 1 died")
    return to_json(
        SweepRecord(
            cluster="lumi",
            partition="gpu",
            nodes=("n1", "n2", "n3"),
            case="bench_cases/test_gpt.py",
            gpus=(1, 8),
            created_at="2026-11-23T16:00:00.123+00:00",
            on_verdict="mail admin",
            jobs=(first, second),
            states={"n3": "drained (fan)"},
        )
    )
