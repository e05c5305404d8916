"""What a rank does from its first line to its last."""

import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from gpuscale.encoding import from_json
from gpuscale.injections import parse_injection
from gpuscale.records import RankOutcome, RankReport, RunRequest
from gpuscale.run_directory import RunDirectory
from gpuscale.worker import checks
from gpuscale.worker.case_loading import load_case
from gpuscale.worker.data import real_dataset, training_batches
from gpuscale.worker.faults import Faults
from gpuscale.worker.lifeline import die_with_parent, end_at_interrupt
from gpuscale.worker.measurement import Measurement, measure, own_pace_s
from gpuscale.worker.reporting import RankFiles
from gpuscale.worker.strategies import Strategy, strategy_for
from gpuscale.worker.training import Parts, Training, build_parts

_SEED = 42
_YIELD_TO_PEERS_S = 1.0
_KEPT_TO_THE_END: list[object] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A rank that has joined the others and built what it trains."""

    strategy: Strategy
    parts: Parts
    joined_at_s: float


def main(directory: str) -> None:
    """Make the run that the directory's request asks for, as the rank that the environment says."""
    be_rank(directory, _run)


def be_rank(directory: str, work: Callable[[RunRequest, RankFiles], msgspec.Struct]) -> None:
    """Do some work as a rank, and leave its outcome or what ended it in the run's directory."""
    die_with_parent()
    end_at_interrupt()
    run_directory = RunDirectory(path=Path(directory))
    request = from_json(RunRequest, run_directory.request.read_text(encoding="utf-8"))
    files = RankFiles(run_directory, int(os.environ.get("RANK", "0")))
    files.announce(request.timeout_s)
    try:
        files.write_outcome(work(request, files))
    except BaseException as error:
        lost_peer = _is_of_communication(error)
        files.write_failure(error, lost_peer=lost_peer)
        if lost_peer:
            # Most likely a peer died. The launcher ends all ranks when it sees the first one
            # go, and that should be the peer, whose exit code tells what happened.
            time.sleep(_YIELD_TO_PEERS_S)
        raise


def _is_of_communication(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, dist.DistError) or "gloo" in text or "NCCL" in text


def prepare(request: RunRequest) -> Prepared:
    """Join the process group and build the training that the request asks for."""
    torch.set_num_threads(request.configuration.threads_per_rank or 1)
    torch.manual_seed(_SEED)
    case = load_case(request)
    size = case.named_size(request.configuration.size)
    strategy = strategy_for(request)
    joined_at_s = time.time()
    if request.data_root is not None and request.download:
        if strategy.local_rank == 0:
            real_dataset(case, request, size, download=True)
        strategy.barrier()
    batches = training_batches(
        case,
        request,
        size,
        # A rank of DDP takes one GPU's share; the single process of dp takes all of them.
        batch=request.batch_per_gpu * request.gpus // strategy.world_size,
        rank=strategy.rank,
        world_size=strategy.world_size,
    )
    parts = build_parts(case, request, strategy, batches)
    return Prepared(strategy=strategy, parts=parts, joined_at_s=joined_at_s)


def keep_to_the_end(*objects: object) -> None:
    """Let nothing take these down before the process ends.

    Taking down gloo's process group under the interpreter's lock can wait for a thread of gloo
    that waits for the lock: with torch 2.11 two of the first eleven runs hung in it, after their
    windows. The process ends right after, and the system takes all of it.
    """
    _KEPT_TO_THE_END.extend(objects)


def _run(request: RunRequest, files: RankFiles) -> RankOutcome:
    prepared = prepare(request)
    strategy = prepared.strategy
    injections = [parse_injection(text) for text in request.injections]
    faults = Faults(injections, rank=strategy.rank, device=strategy.device)
    training = Training(prepared.parts, request.configuration.precision, strategy, faults)
    if any(injection.factor is not None for injection in injections):
        # Every rank, slowed or not: steps are made together.
        faults.know_pace(own_pace_s(training, strategy))
    measurement = measure(training, strategy, request.pacing, files)
    report = _report(strategy, training, measurement)
    strategy.barrier()
    keep_to_the_end(training, strategy)
    return _outcome(report, measurement, prepared.joined_at_s)


def _report(strategy: Strategy, training: Training, measurement: Measurement) -> RankReport:
    loss = checks.finite_or_none(training.last_loss())
    if not checks.parameters_are_finite(training.model):
        loss = None
    return RankReport(
        rank=strategy.rank,
        local_rank=strategy.local_rank,
        host=socket.gethostname(),
        devices=strategy.devices,
        device_uuids=tuple(
            str(torch.cuda.get_device_properties(device).uuid) for device in strategy.devices
        ),
        parameter_digest=checks.parameter_digest(training.model),
        final_loss=loss,
        peak_memory_bytes=checks.peak_device_memory_bytes(strategy.devices),
        peak_host_memory_bytes=checks.peak_host_memory_bytes(),
        pace_s=measurement.pace_s(ranks=strategy.world_size),
        phases=measurement.phases_per_step(),
    )


def _outcome(report: RankReport, measurement: Measurement, joined_at_s: float) -> RankOutcome:
    return RankOutcome(
        report=report,
        joined_at_s=joined_at_s,
        warmup_steps=measurement.warmup_steps,
        warmup_s=measurement.warmup_s,
        steps_per_window=measurement.steps_per_window,
        windows=measurement.windows,
    )


if __name__ == "__main__":
    main(sys.argv[1])
