"""A site's checkout, in which this environment measures tiny cases in jobs."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import builders as make
from changing import replace
from hosts import skip_unless_required
from measuring import REPOSITORY

from gpuscale.store import write_baseline


def make_site(
    folder: Path, *, baseline: str, case: str, published: Sequence[tuple[int, int, float]]
) -> Path:
    """A checkout with the real ci/, the environment of this test, and no case yet.

    Args:
        folder: Where to make it.
        baseline: Which of its baselines has the figures.
        case: Whose they are, for batches of the tiny case, with DDP on CPU ranks.
        published: CPU ranks, nodes and samples per second.
    """
    if not (Path(sys.prefix) / "bin" / "gpuscale").is_file():
        skip_unless_required("needs gpuscale installed in this environment (make setup)")
    root = folder / "site"
    shutil.copytree(REPOSITORY / "ci", root / "ci")
    (root / "bench_cases").mkdir()
    (root / "baselines").mkdir()
    (root / ".venv").symlink_to(sys.prefix)
    figures = (
        make.figure(gpus, nodes=nodes, samples_per_s=samples_per_s, batch_per_gpu=8)
        for gpus, nodes, samples_per_s in published
    )
    document = make.published(*(replace(figure, case=case) for figure in figures))
    on_cpu = replace(document.hardware, device="cpu", gpu_name=None)
    write_baseline(root / "baselines" / f"{baseline}.json", replace(document, hardware=on_cpu))
    return root


def record_of(night: Path) -> dict[str, str]:
    """The lines of a night's record by their names."""
    lines = (night / "night.txt").read_text().splitlines()
    return {name: value for name, _, value in (line.partition(": ") for line in lines)}
