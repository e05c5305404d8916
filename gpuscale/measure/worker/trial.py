"""Check before the first run whether the shapes of each case's batch fit its model and loss.

All other failures are left to the run itself.
"""

import contextlib
import inspect
import os
import socket
from pathlib import Path

import torch
from torch import nn

from gpuscale.base.errors import as_place
from gpuscale.base.foreign_texts import SHAPES
from gpuscale.base.host import die_with_parent, end_at_interrupt
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.measure.worker.data import Batch, example_batch, on_device
from gpuscale.measure.worker.entry import limit_memory
from gpuscale.measure.worker.tensors import map_tensors, tensors_in
from gpuscale.measure.worker.user_code import line_of_user, load_case
from gpuscale.records import Failure
from gpuscale.records.request import RankFailure
from gpuscale.workload.cases import TrainingCase

_FEW_PARAMETERS = 50_000_000
_FEW_OUTPUTS = 2**22
_MEMORY_BYTES = 2**32


def main(folder: str, first: str, step: str) -> None:
    """Write a failure next to each request whose shapes cannot fit.

    This process checks every `step`-th request below the folder, starting with number `first`.
    """
    die_with_parent()
    end_at_interrupt()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # The ranks of a run show what the code of a case prints, if they fail.
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    torch.set_num_threads(1)
    limit_memory(_MEMORY_BYTES)
    paths = sorted(Path(folder).glob("[0-9]*"))
    for path in paths[int(first) :: int(step)]:
        directory = RunDirectory(path=path)
        with contextlib.suppress(Exception):
            request = directory.request.read()
            assert request.batch_per_gpu is not None, "a case that gpuscale trains has a batch"
            batch = request.batch_per_gpu // (request.configuration.accumulate or 1)
            message = misfit(load_case(request), batch)
            if message is not None:
                failure = Failure(kind="raised", message=message, rank=0, host=socket.gethostname())
                directory.failure(0).write(RankFailure(failure=failure, lost_peer=False))


def misfit(case: TrainingCase, batch: int) -> str | None:
    """Return the error message if batches of this size do not fit the case; None if they may fit.

    The error must also occur with a batch of two, which rules out the batch size as the cause. With
    a small model it must occur on the CPU too: the meta device has its own code, perhaps with bugs.
    """
    two = example_batch(case, case.size)
    with torch.device("meta"):
        model = case.model()
    for module in model.modules():
        # Its errors of shapes are the same in evaluation mode, which takes half of the time.
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            module.eval()
    found = _raised(case, model, two, "meta")
    if found is None:
        return None
    whole = map_tensors(lambda tensor: tensor[-1:].expand(batch, *tensor.shape[1:]), two)
    if _raised(case, model, whole, "meta") is None:
        return None
    if sum(map(torch.numel, model.parameters())) > _FEW_PARAMETERS:
        return found
    return _raised(case, case.model(), two, "cpu")


def _raised(case: TrainingCase, model: torch.nn.Module, batch: Batch, device: str) -> str | None:
    """Return the error message if shapes make a forward pass or the loss fail; otherwise None."""
    part = "model"
    try:
        with torch.device(device) as where:
            inputs, targets = on_device(batch, where, torch.preserve_format)
            output = case.forward(model, inputs)
            part = "loss"
            loss = case.loss(output, targets)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            returned = getattr(loss, "shape", type(loss).__name__)
            raise TypeError(f"it returned {returned}, not one number")
        if device == "meta" and sum(map(torch.numel, tensors_in(output))) <= _FEW_OUTPUTS:
            # Only values show that a target is out of bounds, and the meta device has none.
            _, targets = on_device(batch, torch.device("cpu"), torch.preserve_format)
            case.loss(map_tensors(lambda t: torch.zeros_like(t, device="cpu"), output), targets)
    except Exception as error:
        said = (str(error).splitlines() or [""])[0].rstrip(".")
        if not SHAPES.search(said):
            return None
        cls = type(case)
        line = line_of_user(error) or as_place(inspect.getfile(cls), inspect.findsource(cls)[1] + 1)
        classes = f" with {case.classes} classes" if part == "loss" else ""
        return (
            f"{line}: {cls.__name__}: a batch of sample_shape {case.size.sample_shape}{classes} "
            f"does not fit the {part}: {said}"
        )
    return None
