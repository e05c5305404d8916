"""The user's code: import a case from its file, and find the user's lines in a traceback."""

import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType

import torch
from torch import nn

from gpuscale.base.errors import CaseError, as_place
from gpuscale.records import RunRequest
from gpuscale.workload.cases import TrainingCase

_GPUSCALE = Path(__file__).parents[2]
_FOREIGN_FOLDERS = (
    _GPUSCALE,
    Path(torch.__file__).parent,
    Path(sysconfig.get_path("stdlib")),
    Path(sysconfig.get_path("platstdlib")),
)
_INSTALLED = {"site-packages", "dist-packages"}


def load_case(request: RunRequest) -> TrainingCase:
    """Import and return the requested case, with the requested size, or raise CaseError."""
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
    case = found()
    case.size = case.named_size(request.configuration.size)
    return case


def _load_module(name: str, file: Path) -> ModuleType:
    """Import a module by name if the name resolves to `file`, otherwise directly from the file."""
    # pytest's importlib mode names modules in ways that only pytest can resolve.
    with suppress(ImportError):
        module = importlib.import_module(name)
        if module.__file__ and Path(module.__file__).samefile(file):
            return module
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise CaseError(f"{file}: not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def line_of_user(error: BaseException) -> str | None:
    """Return the innermost line of user code in a traceback (`test.py:12`); None if not found."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
    return as_place(frames[-1].filename, frames[-1].lineno) if frames else None


def too_few_outputs(error: BaseException) -> str:
    """Explain an error in the case's `loss` if the model has too few outputs, else return ''."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        case = frame.f_locals.get("self")
        if isinstance(case, TrainingCase) and frame.f_code is getattr(case.loss, "__code__", None):
            output = frame.f_locals.get(frame.f_code.co_varnames[1])
            has_own_labels = type(case).sample is not TrainingCase.sample
            if has_own_labels or not isinstance(output, torch.Tensor) or output.ndim != 2:
                return ""
            outputs, labels = output.shape[1], case.classes
            are = f"labels are 0 to {labels - 1} (`classes` is {labels}), the model has {outputs}"
            return f"; {are} outputs: change one of the two" if outputs < labels else ""
    return ""


def traceback_text(error: BaseException) -> str:
    """Return the traceback of an error, starting at the first line of user code.

    If there is no user code, return the place in gpuscale's code instead, followed by the error
    message if it has several lines, because `Failure.message` has only the first line.
    """
    chain = (error, error.__cause__, error.__context__)
    if place := None if any(each and line_of_user(each) for each in chain) else _place(error):
        lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
        return "\n".join([f"{place}:", *lines] if len(lines) > 1 else [place])
    first: TracebackType | None = error.__traceback__
    while first is not None and not _is_users(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    return "".join(traceback.format_exception(type(error), error, first or error.__traceback__))


def _place(error: BaseException) -> str | None:
    """Describe the call in gpuscale's code that led to an error; None if there is no such call."""
    own = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if Path(frame.f_code.co_filename).is_relative_to(_GPUSCALE)
    ]
    if not own:
        return None
    frame, line = own[-1]
    if frame.f_code is TrainingCase.forward.__code__:
        place = f"in the forward pass of {type(frame.f_locals['self']).__name__}'s model"
        return f"{place}{_layer(error, frame.f_locals['model'])}"
    # Python names the method whose parameters do not match: `DigitsMlp.optimizer() takes …`.
    method, is_method, _ = str(error).partition("() ")
    wanted = getattr(TrainingCase, method.rpartition(".")[2], None) if is_method else None
    if isinstance(error, TypeError) and wanted is not None:
        _, *parameters = inspect.signature(wanted).parameters
        return f"gpuscale calls {wanted.__name__}({', '.join(parameters)})"
    return f"in a call from {Path(frame.f_code.co_filename).relative_to(_GPUSCALE.parent)}:{line}"


def _layer(error: BaseException, model: object) -> str:
    """Return the innermost layer in a traceback, such as `, layer 2: Linear(…)`; '' if none."""
    found = model.named_modules() if isinstance(model, nn.Module) else ()
    layers = {layer: name.removeprefix("module.") for name, layer in found if layer is not model}
    inside = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    entered = [each for each in inside if isinstance(each, nn.Module) and each in layers]
    if not entered:
        return ""
    kind = f"{type(entered[-1]).__name__}({entered[-1].extra_repr()})"
    return f", layer {layers[entered[-1]]}: {kind}"


def _is_users(file: str) -> bool:
    path = Path(file)
    return (
        path.is_absolute()
        and not any(path.is_relative_to(folder) for folder in _FOREIGN_FOLDERS)
        and _INSTALLED.isdisjoint(path.parts)
    )
