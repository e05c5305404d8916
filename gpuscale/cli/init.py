"""`gpuscale init`: write cases, published baselines and a cluster profile into a folder."""

import argparse
import os
import socket
from pathlib import Path

from gpuscale import __version__
from gpuscale.base.errors import ExitCode, FileError
from gpuscale.base.text import counted, visible
from gpuscale.cli.inputs import remark, say
from gpuscale.measure.schedulers import scheduler_here
from gpuscale.store.files import make_folder, read_baseline, write_report

_SHIPPED = Path(__file__).parent.parent / "shipped"
"""Folder that `gpuscale init` copies; in a checkout, it contains links to top-level folders."""
_PROFILE = """\
# A first profile, by 'gpuscale init'. All fields: docs/clusters.md of gpuscale's repository.
description = "The {scheduler.title} cluster of {host}"
scheduler = "{scheduler.name}"

[node]
gpus = 4  # a guess: correct it
# cores = 64
whole = true  # a guess: jobs get whole nodes; other jobs on a node would be measured too

[job]
# partition = "gpu"
time_limit = "01:00:00"
gpu_option = '{gpu_option}'  # a guess: correct it
options = {options}
# account = "my_budget"
# modules = ["gcc/13", "python/3.12"]

[measure]
cases = ["bench_cases/test_mnist_cnn.py", "bench_cases/test_resnet50.py"]
gpus = [1, 2, 4]
"""
_README = """\
# Scaling measurements with gpuscale {version}

`bench_cases/` has the cases that come with gpuscale, `baselines/` published figures of other
machines. Without GPUs, CPU ranks stand in for them. Measure one case, or all of `bench_cases`:

    pytest bench_cases/test_mnist_cnn.py --gpus 1,2 --strategy ddp --results well.jsonl
    gpuscale show well.jsonl
    gpuscale baseline record well.jsonl --cluster "this machine" -o baselines/ours.json
    pytest bench_cases/test_mnist_cnn.py --gpus 1,2 --strategy ddp
    gpuscale compare baselines/ours.json
{submit}
"""
_SUBMIT = """
In a job of this cluster, after correcting `mysite.toml`; the first line only prints the job script:

    gpuscale submit ./mysite.toml --print
    gpuscale submit ./mysite.toml --wait"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write the shipped cases, published baselines, a profile for this cluster's scheduler and "
        "a README into a folder. Nothing is overwritten."
    )
    text = "the folder, which may not exist yet"
    parser.add_argument("folder", metavar="DIR", type=Path, help=text)


def run(arguments: argparse.Namespace) -> int:
    """Write all files; raise FileError before writing any if one of them already exists."""
    folder, scheduler = arguments.folder, scheduler_here()
    profile = {}
    if scheduler is not None:
        profile["mysite.toml"] = _PROFILE.format(
            scheduler=scheduler,
            host=socket.gethostname(),
            gpu_option=scheduler.default_gpu_option or "-l gpu={gpus}",
            options='["--exclusive"]  # a guess: correct it' if scheduler.name == "slurm" else "[]",
        )
    submit = _SUBMIT if profile else ""
    found = (path for path in sorted(_SHIPPED.glob("*/*.*")) if path.is_file())
    # Baselines that have measured runs are of this project's own machines.
    shipped = [path for path in found if path.suffix != ".json" or not read_baseline(path).runs]
    files = {str(path.relative_to(_SHIPPED)): path.read_text("utf-8") for path in shipped}
    files |= profile | {"README.md": _README.format(version=__version__, submit=submit)}
    for file in files:
        if os.path.lexists(folder / file):
            problem = "exists already and is not overwritten; name a new folder"
            raise FileError(visible(str(folder / file)), problem)
    for file, content in files.items():
        path = folder / file
        make_folder(path.parent)
        write_report(path, content)
    say(f"wrote {counted(len(files), 'file')} into {visible(str(folder))}")
    if not profile:
        remark("no profile was written, since no scheduler was found here")
    say(f"next: read {visible(str(folder / 'README.md'))}")
    return ExitCode.OK
