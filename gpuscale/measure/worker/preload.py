"""Import slow modules that all ranks need, before ranks are forked from this process."""

import contextlib
import importlib

# pytest, because case files import it for their mark.
_SLOW_MODULES = (
    "torch.distributed",
    "torch.nn.parallel",
    "torchvision.transforms.v2",
    "pytest",
    "gpuscale.measure.worker.entry",
    "gpuscale.measure.worker.machine",
    "gpuscale.measure.worker.node_probe",
)

for _name in _SLOW_MODULES:
    # A rank that needs a module that is broken reports it, with its traceback.
    with contextlib.suppress(Exception):
        importlib.import_module(_name)
