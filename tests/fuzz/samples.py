"""Valid files that use every field of their format: where the fuzzing of the readers starts."""

from builders import figure, results_text
from builders.nights import CNN, Night, baseline_of, results_of_night
from changing import replace

from gpuscale.base.counters import NUMBERS
from gpuscale.records import (
    BaselineChange,
    Failure,
    HostLoad,
    NodeEvidence,
    Results,
    Source,
    ToleranceOverride,
    Tolerances,
)
from gpuscale.records.json_text import to_json
from gpuscale.records.metrics import OpenMetric
from gpuscale.records.node_evidence import Port
from gpuscale.records.probe import Probe
from gpuscale.records.software import Library
from gpuscale.store.codec import encode_baseline
from gpuscale.store.sweep import SweepJob, SweepRecord

_NIGHT = Night(job="17", gpus=(1, 2, 8), runs=2, injections=("data=5ms",))
_KILLED = Failure(kind="killed", message="rank 1 was killed", rank=1, host="node1", detail="a\nb")


def samples() -> dict[str, str]:
    """The text of one results file, of one baseline and of one sweep."""
    return {"results": results_text(_results()), "baseline": _baseline(), "sweep": _sweep()}


def _results() -> Results:
    results = results_of_night(_NIGHT)
    first, *others = results.runs
    failed = replace(first, index=9, failure=_KILLED, measured={}, telemetry_absent="no driver")
    rare = {
        "batch": 32,
        "ranks_per_gpu": 2,
        "command": "train.py {gpus}",
        "accumulate": 4,
        "schedule": "1f1b",
        "micro_batches": 8,
        "strategy_options": "bucket_cap_mb=50",
        "metric": OpenMetric(name="busbw", unit="GB/s", more_is_better=True, scaling="rate"),
    }
    failed = replace(failed, configuration=replace(failed.configuration, **rare))
    summary = replace(
        first.gpu_summaries[0], absent=("power: Not Supported",), values=dict.fromkeys(NUMBERS, 1)
    )
    load = HostLoad(load_average=3.5, cores=2, cpu_pressure=0.5, steal=0.0, gpu_processes=1)
    port = Port(
        name="mlx5_1 port 1",
        kind="infiniband",
        model="15b3:1021",
        pci_address="0000:c1:00.0",
        numa_node=1,
        state="active",
        rate_gbit_s=400.0,
        duplex="full",
        width=4,
        pcie_gt_s=32.0,
        pcie_width=16,
        growth={"symbol_error": 3},
        at_least=("symbol_error",),
        absent={"Permission denied": ("link_downed",)},
    )
    node = NodeEvidence(
        host="n1",
        load=load,
        settings={"governor": "performance"},
        ports=(port,),
        connections={"channels": "24"},
        libraries=(Library(name="NCCL", path="/lib/libnccl.so.2", version="2.27.7"),),
        cpus=("0-7,64-71", "8-15"),
        absent={"microcode": "no permission"},
        cost_s=0.004,
    )
    first = replace(first, gpu_summaries=(summary, *first.gpu_summaries[1:]), nodes=(node,))
    ranks = (replace(first.ranks[0], numa_nodes=(0, 1)), *first.ranks[1:])
    first = replace(first, reported_step_s=0.1, ranks=ranks)
    found_by_driver = {
        "smi": "AMD SMI",
        "smi_index": 3,
        "partition": "CPX/NPS4",
        "pci_address": "00000000:C1:00.0",
        "numa_node": 1,
        "power_limit_w": 250.0,
        "application_clock_mhz": 1312.0,
        "max_clock_mhz": 1530.0,
        "firmware": "VBIOS 88.00.01",
    }
    gpus = (replace(results.environment.gpus[0], **found_by_driver),)
    versions = {"cudnn_version": "9.1", "lightning_version": "2.6", "system": "ARC4"}
    versions |= {"cpu_bind": "mask_cpu:0xff,0xff00"}
    # No environment has these beside CUDA's, and a reader must take them all the same.
    of_amd = {"rocm_version": "6.4", "miopen_version": "3.4", "rccl_version": "2.22.3"}
    packages = {"packages": {"numpy": "2.3"}, "packages_absent": "not found"}
    where = replace(results.environment, **versions, **of_amd, **packages, gpus=gpus)
    probe = Probe(
        name="send",
        host="n1",
        device="GPU 1",
        uuid="GPU-1",
        peer="n2",
        message_bytes=1048576,
        precision="fp32",
        rates=(1e9, 2e9),
    )
    results = replace(results, environment=where, left_out="cooling failure", probes=(probe,))
    return replace(results, runs=(first, failed, replace(others[0], allocation="18"), *others[1:]))


def _baseline() -> str:
    baseline = baseline_of(replace(_NIGHT, injections=()))
    override = ToleranceOverride(
        case=CNN.case,
        strategy="ddp",
        gpus=2,
        metric="speedup",
        margin=0.03,
        ok_bound=0.06,
        allocation_deviation=0.01,
    )
    change = BaselineChange(
        at="2026-11-21T03:30:15+00:00",
        reason="new NCCL",
        by="bob",
        replaced=baseline.runs[:1],
        added=("mnist_cnn/ddp on 2 GPUs",),
        environments=baseline.environments,
    )
    return encode_baseline(
        replace(
            baseline,
            expires_on="2027-05-01",
            source=Source(title="A course", url="https://example.org", published="2026", note="x"),
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
    began, ended = "2026-11-23T16:00:00.123+00:00", "2026-11-23T16:05:00.123+00:00"
    first = SweepJob(
        node="n1", number=1, job="17", submitted_at=began, ended_at=ended, outcome="measured"
    )
    second = replace(first, number=2, is_control=True, outcome="failed", detail="rank 1 died")
    return to_json(
        SweepRecord(
            cluster="lumi",
            partition="gpu",
            nodes=("n1", "n2", "n3"),
            case="bench_cases/test_gpt.py",
            gpus=(1, 8),
            job_s=100.0,
            created_at=began,
            on_verdict="mail admin",
            jobs=(first, second),
            states={"n3": "drained (fan)"},
        )
    )
