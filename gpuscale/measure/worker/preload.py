"""Imported by the fork server before it forks ranks: ties it to its parent, and loads what is slow.

A rank inherits the write end of the pipe by which a fork server notices its parent's death,
so a fork server with ranks would outlive a killed pytest, and the ranks with it.
"""

import contextlib
import importlib
import os

from gpuscale.base.host import die_with_parent

# pytest, because case files import it for their mark.
_SLOW_MODULES = (
    "torch.distributed",
    "torch.nn.parallel",
    "torchvision.transforms.v2",
    "pytest",
    "gpuscale.measure.worker.entry",
    "gpuscale.measure.worker.machine",
    # What the runs of this session need beside (measure/launch/local.py).
    *filter(None, [os.environ.get("GPUSCALE_PRELOAD")]),
)

die_with_parent()
for _name in _SLOW_MODULES:
    # A module that is broken here is reported by the rank that needs it, with its traceback.
    with contextlib.suppress(Exception):
        importlib.import_module(_name)
