"""What is kept of an attempt that failed: where it ran, on which devices, and what went wrong."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from gpuscale.night.attempt import Attempt, Fault
from gpuscale.records import Environment, Node


def failed_attempt_json(
    attempt: Attempt, faults: Sequence[Fault], *, host: str, job: str, nodes: Sequence[str]
) -> str:
    """The text of `evidence.json`.

    Args:
        attempt: What was tried.
        faults: What looks like the infrastructure's.
        host: On which the night itself runs.
        job: The scheduler's number of the job.
        nodes: All nodes of the job by the scheduler's names; empty where it does not tell.
    """
    runs = () if attempt.results is None else attempt.results.runs
    ranks = [rank for run in runs for rank in run.ranks]
    environment = None if attempt.results is None else attempt.results.environment
    document = {
        "format": "gpuscale-evidence",
        "version": 1,
        "job": job,
        "host": host,
        "nodes": list(nodes),
        "hosts": sorted({rank.host for rank in ranks}),
        "gpus": [] if environment is None else _gpus(environment),
        "gpu_uuids_used": sorted({uuid for rank in ranks for uuid in rank.device_uuids}),
        "pytest_exit": attempt.exit_code,
        "valid_runs": sum(run.is_valid for run in runs),
        "failed_runs": sum(run.failure is not None for run in runs),
        "faults": [asdict(fault) for fault in faults],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _gpus(environment: Environment) -> list[dict[str, object]]:
    places: tuple[Node | Environment, ...] = environment.nodes or (environment,)
    return [
        {"host": place.host, "index": gpu.index, "name": gpu.name, "uuid": gpu.uuid}
        for place in places
        for gpu in place.gpus
    ]
