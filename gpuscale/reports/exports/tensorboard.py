"""Export to TensorBoard event files: runs against steps, scaling curves against GPU counts."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, count
from pathlib import Path

import msgspec

from gpuscale.analysis.scaling import scaling_points
from gpuscale.base.errors import FileError, require_packages
from gpuscale.base.units import counted
from gpuscale.records import Estimate, Results, Run
from gpuscale.records.environment import gpu_places
from gpuscale.reports.columns import SCALING
from gpuscale.reports.phrases import set_apart
from gpuscale.store.files import file_errors

_Scalar = tuple[str, float, int, float]
"""Tag, value, step and Unix time: the arguments of `add_scalar`."""


def write(target: Path, results: Sequence[Results]) -> str:
    """Write a folder for each run and each scaling curve; return a text on how to display them."""
    require_packages("export tensorboard", ("torch", "tensorboard"))
    from torch.utils.tensorboard import SummaryWriter

    named = zip(_folder_names(map(_measured, results)), results, strict=True)
    folders = {target / name: result for name, result in named}
    with file_errors(target):
        for folder in folders:
            if folder.exists():
                problem = "exists already, and TensorBoard would show everything twice; delete it"
                raise FileError(folder, problem)
        for folder, result in folders.items():
            for name, scalars in _curves(result):
                with SummaryWriter(folder / name) as writer:
                    for scalar in scalars:
                        writer.add_scalar(*scalar)
    return f"wrote {counted(len(folders), 'folder')}; look: tensorboard --logdir {target}"


def _measured(result: Results) -> str:
    """Name results by start time and job, `2026-11-21T021000-4711`, and by any injected faults."""
    at, where = datetime.fromisoformat(result.created_at), result.environment
    name = f"{at:%Y-%m-%dT%H%M%S}-{where.job_id or where.host}"
    return "-".join((name, *(f"INJECTED-{each}" for each in result.injections)))


def _curves(result: Results) -> Iterator[tuple[str, list[_Scalar]]]:
    """Yield the folder name and the scalars of each run and each scaling curve."""
    labels = set_apart([run.configuration for run in result.runs])
    rows = dict(zip(labels, _folder_names(labels.values()), strict=True))
    places = gpu_places([result.environment])
    for run in result.runs:
        folder = (
            f"{rows[run.configuration]}/{run.gpus}-gpus-batch-{run.batch_per_gpu}-run-{run.index}"
        )
        if scalars := list(_of_run(run, places)):
            yield folder, scalars
    measured_s = datetime.fromisoformat(result.created_at).timestamp()
    of_rows: dict[str, list[_Scalar]] = {}
    for point in scaling_points(result.runs):
        folder = f"{rows[point.configuration]}/scaling"
        for column in SCALING:
            # The number of GPUs takes the place of the step.
            if isinstance(estimate := column.value_in(point), Estimate):
                scalar = f"over_gpus/{column.field}", estimate.value, point.gpus, measured_s
                of_rows.setdefault(folder, []).append(scalar)
    yield from of_rows.items()


def _of_run(run: Run, places: Mapping[str, str]) -> Iterator[_Scalar]:
    """Yield scalars of a run's synchronised windows; phases are those of the slowest rank."""
    steps = run.steps_per_window or 1
    for number, window in enumerate(run.windows):
        values = {"step_time_s": window.time_s / steps}
        if run.batch_per_gpu is not None:
            values["samples_per_s"] = run.gpus * run.batch_per_gpu * steps / window.time_s
        for report, busy_s in zip(run.ranks_in_order, window.busy_s, strict=False):
            values[f"busy_s/rank_{report.rank}"] = busy_s / steps
        if window.phases is not None:
            phases = msgspec.structs.asdict(window.phases.scaled(1 / steps))
            values |= {f"phases/{name}": time_s for name, time_s in phases.items()}
        for summary in run.gpu_summaries:
            counters = summary.windows[number].values if summary.windows else {}
            place = places.get(summary.uuid, summary.uuid)
            values |= {f"{counter}/{place}": float(value) for counter, value in counters.items()}
        ended_at_s = window.started_at_s + window.time_s
        for tag, value in values.items():
            yield tag, value, (number + 1) * steps, ended_at_s


def _folder_names(texts: Iterable[str]) -> list[str]:
    """Return a unique folder name for each text, since TensorBoard merges curves in one folder."""
    names: list[str] = []
    for text in texts:
        name = re.sub(r"[^\w.,()=-]+", "_", text)
        numbered = (f"{name}-{number}" for number in count(2))
        names.append(next(each for each in chain([name], numbered) if each not in names))
    return names
