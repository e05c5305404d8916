"""A user's own folder, in whose jobs this environment measures tiny cases."""

import sys
from collections.abc import Sequence
from pathlib import Path

import builders as make
from changing import replace
from hosts import skip_unless_required

from gpuscale.store import write_baseline


def make_site(
    folder: Path, *, baseline: str, case: str, published: Sequence[tuple[int, int, float]]
) -> Path:
    """A folder with a baseline and no case yet, which is no checkout of gpuscale.

    Args:
        folder: Where to make it.
        baseline: Which of its baselines has the figures.
        case: Whose they are, for batches of the tiny case, with DDP on CPU ranks.
        published: CPU ranks, nodes and samples per second.
    """
    if not (Path(sys.prefix) / "bin" / "gpuscale").is_file():
        skip_unless_required("needs gpuscale installed in this environment (make setup)")
    root = folder / "site"
    (root / "bench_cases").mkdir(parents=True)
    (root / "baselines").mkdir()
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
