"""A user's own folder, in whose jobs this environment measures tiny cases."""

import sys
from collections.abc import Sequence
from pathlib import Path

import builders as make
from changing import replace
from hosts import skip_unless_required
from measuring import command_case, write_case

from gpuscale.store.files import write_baseline

SUBMIT = (sys.executable, "-m", "gpuscale", "submit", "./mysite.toml", "--yes", "--wait")
PROFILE = """\
description = "Two hosts on one machine"
scheduler = "{scheduler}"

[node]  # CPU ranks stand in for GPUs
{node}

[job]
gpu_option = "{gpu_option}"
time_limit = "00:05:00"

[measure]
cases = ["bench_cases/test_tiny.py"]
runs = 1
device = "cpu"
size = "full"
run_seconds = 0.2
options = ["-p", "no:cacheprovider", "--oversubscribe"{options}]

[judge]
baseline = "baselines/here.json"
cases = ["case/ddp"]
"""
ON_EACH_NODE = command_case(
    "OnEachNode",
    f"{sys.executable} -m torch.distributed.run --nnodes {{nodes}} --nproc-per-node "
    "{gpus_per_node} --rdzv-backend c10d --rdzv-endpoint {master_addr}:{master_port} steps.py",
    batch=8,
)
_MPIRUN = "mpirun --allow-run-as-root --hostfile {hostfile} --map-by node --bind-to none -np {gpus}"
_STARTED = f"{_MPIRUN} {sys.executable} steps.py"
BY_ITS_OWN_MPIRUN = command_case("ByItsOwnMpirun", _STARTED, batch=8, launch="once")
_STEPS = """
import time
from gpuscale import report

with report() as step_done:
    while True:
        time.sleep(0.01)
        step_done()
"""


def profile_of(
    scheduler: str, *, node: str = "gpus = 2\ncores = 2", gpu_option: str = "", options: str = ""
) -> str:
    """The profile of a cluster of two hosts, whose jobs measure the tiny case."""
    return PROFILE.format(scheduler=scheduler, node=node, gpu_option=gpu_option, options=options)


def write_cases(site: Path, *commands: str) -> None:
    """Write the tiny case of a site, and cases of commands that make steps for ever."""
    with write_case(site / "bench_cases", "class Case(Tiny):\n    pass\n").open("a") as file:
        file.write("".join(commands))
    (site / "steps.py").write_text(_STEPS)


def make_site(
    folder: Path,
    published: Sequence[tuple[int, int, float]],
    *,
    baseline: str = "here",
    case: str = "case",
) -> Path:
    """Make a user's folder, with a baseline of (CPU ranks, nodes, samples per second)."""
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
    lines = (night / "night.txt").read_text().splitlines()
    return {name: value for name, _, value in (line.partition(": ") for line in lines)}
