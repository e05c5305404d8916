"""From a run to the evidence that a baseline keeps of it and a diagnosis sets beside it."""

from dataclasses import replace

from gpuscale.records import RankEvidence, Run, RunEvidence


def evidence_of(run: Run) -> RunEvidence:
    """What a valid run tells beside its step time."""
    return RunEvidence(
        exposed_communication_s=run.exposed_communication_s,
        peak_memory_bytes=peak_memory_bytes(run),
        energy_per_sample_j=energy_per_sample_j(run),
        ranks=tuple(
            RankEvidence(
                rank=rank.rank,
                host=rank.host,
                device_uuids=rank.device_uuids,
                pace_s=rank.pace_s,
                phases=rank.phases,
            )
            for rank in run.ranks
        ),
        gpu_summaries=tuple(replace(summary, windows=()) for summary in run.gpu_summaries),
    )


def peak_memory_bytes(run: Run) -> int | None:
    """Largest peak of the CUDA allocator on any rank; None on CPU."""
    peaks = [rank.peak_memory_bytes for rank in run.ranks if rank.peak_memory_bytes is not None]
    return max(peaks, default=None)


def energy_per_sample_j(run: Run) -> float | None:
    """Joules of all devices for one sample in the windows; None where a counter is missing."""
    energies = [summary.energy_j for summary in run.gpu_summaries if summary.energy_j is not None]
    if not energies or len(energies) < len(run.gpu_summaries) or not run.steps_per_window:
        return None
    samples = len(run.windows) * run.steps_per_window * run.batch_per_gpu * run.gpus
    return sum(energies) / samples if samples else None
