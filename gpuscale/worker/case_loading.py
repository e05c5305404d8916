"""From a request to the case that it names, in a process that never saw the test session."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from gpuscale.cases import TrainingCase
from gpuscale.errors import CaseError
from gpuscale.records import RunRequest


def load_case(request: RunRequest) -> TrainingCase:
    """Import the module of the case and make an instance.

    Raises:
        CaseError: the class is not in the module, or is not a TrainingCase.
    """
    for path in reversed(request.import_paths):
        if path not in sys.path:
            sys.path.insert(0, path)
    found: object = _load_module(request.case_module, Path(request.case_file))
    for part in request.case_class.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, TrainingCase)):
        raise CaseError(
            f"{request.case_file}: no TrainingCase named {request.case_class} at the top of the "
            "module; ranks import the case from its file, so it cannot live inside a function"
        )
    return found()


def _load_module(name: str, file: Path) -> ModuleType:
    """The module by its name where that leads to `file`, else straight from the file."""
    try:
        module = importlib.import_module(name)
        if module.__file__ and Path(module.__file__).samefile(file):
            return module
    except ImportError:
        # pytest's importlib mode names modules in ways that only pytest can resolve.
        pass
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise CaseError(f"{file}: not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
