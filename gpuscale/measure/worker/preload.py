"""Prepare the fork server that imports this before it forks ranks: load slow modules once.

It also dies with its parent. By itself it would outlive a killed pytest, and its ranks with it:
they inherit the write end of the pipe by which a fork server notices its parent's death.
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
    "gpuscale.measure.worker.node_probe",
    # A module that this session needs besides (measure/launch/local.py).
    *filter(None, [os.environ.get("GPUSCALE_PRELOAD")]),
)

die_with_parent()
for _name in _SLOW_MODULES:
    # A rank that needs a module that is broken reports it, with its traceback.
    with contextlib.suppress(Exception):
        importlib.import_module(_name)
