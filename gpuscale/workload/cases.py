"""Base classes of the workloads that users define; importing this module does not import torch."""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from gpuscale.base.errors import CaseError, UsageError, as_place
from gpuscale.base.strategies import CASE_STRATEGIES, STRATEGIES
from gpuscale.base.text import suggestion
from gpuscale.records.configuration import ScalingMode

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Batch size and sample shape of a training case."""

    batch: int
    """Samples per GPU for weak scaling; total samples over all GPUs for strong scaling."""
    sample_shape: tuple[int, ...]


class Case:
    """A workload that can be measured on several GPUs: `TrainingCase` or `CommandCase`."""

    strategies: ClassVar[tuple[str, ...]]

    @classmethod
    def name(cls) -> str:
        """Return the case's name in all tables and files: the class name in snake case."""
        words = cls.__name__.replace("NaN", "Nan")
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", words).lower()

    @classmethod
    def divided(cls, batch: int, gpus: int) -> int:
        """Return each GPU's share of a global batch; raise a CaseError if the split is not even."""
        if batch % gpus:
            raise CaseError(
                f"{cls.name()}: a global batch of {batch} cannot be divided among {gpus} GPUs; "
                "choose a number of GPUs that divides it"
            )
        return batch // gpus


class TrainingCase(Case):
    """A training workload: model, data, loss, optimiser and batch size.

    Subclass it, set `sample_shape` and `batch` (or `sizes`), and implement `model`, `loss` and
    `optimizer`. Everything else has a default that suits image classification.
    """

    strategies: ClassVar[tuple[str, ...]] = ("ddp",)
    strategy_options: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    """Options by strategy: `{"ddp": {"bucket_cap_mb": 50, "comm_hook": "bf16_compress"}}`."""
    scaling: ClassVar[ScalingMode] = "weak"
    sample_shape: ClassVar[tuple[int, ...]] = ()
    batch: ClassVar[int] = 0
    classes: ClassVar[int] = 10
    training_samples: ClassVar[int] = 50_000
    """Samples per epoch: the length of synthetic data, and the basis of epoch times in tables."""
    raw_image_shape: ClassVar[tuple[int, ...] | None] = None
    """Height, width (and 3 for colour) of the images that `transform` gets; None if no images."""
    size: Size
    """The selected size; each rank sets this attribute before it calls `model()`."""
    sizes: ClassVar[Mapping[str, Size]] = {}
    """Sizes by name; if empty, `batch` and `sample_shape` are used for any requested name."""

    def model(self) -> "torch.nn.Module":
        """Return a newly initialised model on the CPU; gpuscale seeds all ranks identically."""
        raise NotImplementedError

    def blocks(self, model: "torch.nn.Module") -> "Sequence[torch.nn.Module]":
        """Return the model's modules in order; `pipeline` and `mp` split the model between modules.

        The first module takes the inputs, and each following module takes the output of the one
        before; chained, the modules compute the same as `forward`. The default is the children of
        an `nn.Sequential`; for any other model, it is an empty list.
        """
        from torch import nn

        return list(model.children()) if isinstance(model, nn.Sequential) else []

    def loss(self, output: Any, target: Any) -> "torch.Tensor":
        """Return the scalar loss of one batch."""
        raise NotImplementedError

    def optimizer(self, model: "torch.nn.Module", gpus: int) -> "torch.optim.Optimizer":
        """Return the optimiser for the model from `model()`, which is already on its device.

        Use `gpus` if the learning rate scales with the number of GPUs.
        """
        raise NotImplementedError

    def scheduler(
        self, optimizer: "torch.optim.Optimizer"
    ) -> "torch.optim.lr_scheduler.LRScheduler | None":
        """Return a learning-rate schedule to step after each epoch; None for no schedule."""
        return None

    def forward(self, model: Callable[..., Any], inputs: Any) -> Any:
        """Return the model's output for a batch; override this if `model(inputs)` does not fit."""
        return model(inputs)

    def sample(self, index: int, size: Size) -> Any:
        """Return the synthetic sample at an index, which must be identical in every call.

        A sample is `(inputs, target)`, or a dict that is passed whole to both `forward` and `loss`;
        it consists of tensors, numbers, or dicts, lists and tuples of these. By default, the inputs
        are an image if the case has transforms, else floats in the sample shape: noise added to a
        pattern that depends on the sample's class, so that the loss falls as in real training.
        """
        import torch

        has_transform = self.transform(size) is not None
        shape = self.raw_image_shape if has_transform else size.sample_shape
        if shape is None:
            raise CaseError(f"{self.name()}: a case with transforms needs raw_image_shape")
        label = index % self.classes
        generator = torch.Generator().manual_seed(label)
        pattern = torch.rand(shape, generator=generator)
        noise = torch.rand(shape, generator=generator.manual_seed(self.classes + index))
        inputs = (pattern + noise) / 2
        if not has_transform:
            return inputs, label
        from PIL import Image

        return Image.fromarray((inputs * 255).to(torch.uint8).numpy()), label

    @classmethod
    def default_strategy(cls) -> str:
        """Return the first strategy that has one rank per GPU, or else the first strategy."""
        return max(cls.strategies, key=lambda name: STRATEGIES[name].processes(2))

    @classmethod
    def options_text(cls, strategy: str) -> str | None:
        """Return a strategy's options as text, such as `bucket_cap_mb=50`; None if it has none."""
        options = cls.strategy_options.get(strategy, {})
        return ", ".join(f"{name}={options[name]}" for name in sorted(options)) or None

    def batch_per_gpu(self, size: Size, gpus: int) -> int:
        """Return the number of samples per GPU in a step; raise a CaseError if it is not whole."""
        return size.batch if self.scaling == "weak" else self.divided(size.batch, gpus)

    def transform(self, size: Size) -> Callable[[Any], Any] | None:
        """Return a function that converts a PIL image to inputs; None if the data are tensors.

        The default converts an image to floats from 0 to 1 in the sample shape.
        """
        if self.raw_image_shape is None:
            return None
        import torch
        from torchvision.transforms import v2

        shape = size.sample_shape[1:]
        # Resizing bytes takes a fifth of the time of resizing floats.
        resized = () if self.raw_image_shape[:2] == shape else (v2.Resize(shape, antialias=True),)
        steps: Callable[[Any], Any] = v2.Compose(
            [v2.ToImage(), *resized, v2.ToDtype(torch.float32, scale=True)]
        )
        return steps

    def real_dataset(self, root: Path, size: Size, *, download: bool) -> "Dataset[Any]":
        """Return the transformed real data in `root`; `download` permits fetching absent data."""
        raise CaseError(
            f"{self.name()} has no real data; leave out --data-root, or write "
            f"{type(self).__name__}.real_dataset()"
        )

    def named_size(self, name: str | None) -> Size:
        """Return `sizes[name]` (CaseError if absent) or, if `sizes` is empty, the only size."""
        if self.sizes:
            if name is None or name not in self.sizes:
                known = ", ".join(sorted(self.sizes))
                raise CaseError(f"{self.name()} has no size '{name}'; it has {known}")
            return self.sizes[name]
        return Size(batch=self.batch, sample_shape=self.sample_shape)


_OTHER_NAMES = {"batch_size": "batch", "num_classes": "classes", "criterion": "loss"}
"""Names of case attributes, keyed by the names that other tools give them."""


def validate_names(case: type[Case], base: type[Case]) -> None:
    """Raise a CaseError for a method replaced by a value, or an attribute with a mistyped name.

    A name that merely resembles one of `base` is accepted if the case's own files read it.
    """
    known = [name for name in dir(base) if not name.startswith("_")]
    for name in known:
        if callable(getattr(base, name)) and not callable(found := getattr(case, name)):
            raise CaseError(f"{case.__name__}.{name} is {found!r}; it must be a method")
    owners = [owner for owner in case.__mro__ if issubclass(owner, base) and owner is not base]
    for name in sorted({name for owner in owners for name in vars(owner)}.difference(known)):
        meant = suggestion(_OTHER_NAMES.get(name, name), known, 0.75)
        if meant and not name.startswith("_") and _is_unread(name, owners):
            raise CaseError(
                f"gpuscale does not read {case.__name__}.{name}{meant}; correct its name, or begin "
                "it with _ if it is your own"
            )


def _is_unread(name: str, owners: Iterable[type]) -> bool:
    """Return True if `name` is read nowhere in the source files that define the classes."""
    # The source of a class may be unknown.
    with suppress(OSError, TypeError, KeyError):
        modules = {sys.modules[owner.__module__] for owner in owners}
        nodes = [node for one in modules for node in ast.walk(ast.parse(inspect.getsource(one)))]
        loads = [node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Load)]
        return name not in {getattr(node, "attr", getattr(node, "id", "")) for node in loads}
    return False


def validate_case(case: type[TrainingCase]) -> None:
    """Raise a CaseError, with file and line, for mistakes that would otherwise make ranks fail."""
    try:
        validate_names(case, TrainingCase)
        _validate_parts(case)
    except CaseError as error:
        try:
            place = as_place(inspect.getfile(case), inspect.findsource(case)[1] + 1)
        except (OSError, TypeError):
            raise error from None
        raise CaseError(f"{place}: {error}") from None


def _validate_parts(case: type[TrainingCase]) -> None:
    name, chosen = case.__name__, case.strategies
    if not isinstance(chosen, tuple | list) or not chosen or not {*chosen} <= {*CASE_STRATEGIES}:
        takes = f"it takes a tuple of {', '.join(CASE_STRATEGIES)}, such as ('ddp',)"
        raise CaseError(f"{name}.strategies is {chosen!r}; {takes}")
    if case.scaling not in (modes := get_args(ScalingMode)):
        raise CaseError(f"{name}.scaling is {case.scaling!r}; it is one of {', '.join(modes)}")
    for strategy, options in case.strategy_options.items():
        known = STRATEGIES[strategy].options if strategy in STRATEGIES else ()
        if unknown := sorted(options.keys() - {*known}):
            remedy = f"it has {', '.join(known)}" if known else f"{strategy} has no options"
            where = f"{name}.strategy_options[{strategy!r}]"
            raise CaseError(f"{where}: there is no option {unknown[0]!r}; {remedy}")
    for part in ("model()", "loss()", "optimizer()", *(() if case.sizes else ("batch",))):
        if getattr(case, part.strip("()")) is getattr(TrainingCase, part.strip("()")):
            raise CaseError(f"{name}.{part} must be {'implemented' if '(' in part else 'set'}")
    for size_name, size in case.sizes.items() or (("", case),):
        where = f"{name}.sizes[{size_name!r}]" if size_name else name
        validate_count(f"{where}.batch", getattr(size, "batch", None))
        shape = getattr(size, "sample_shape", None)
        if not isinstance(shape, tuple) or not shape:
            raise CaseError(f"{where}.sample_shape is {shape!r}; it is a tuple such as (3, 9, 9)")
        for length in shape:
            validate_count(f"{where}.sample_shape", length)


def validate_count(what: str, found: object) -> None:
    """Raise a CaseError that names `what` unless `found` is a whole number of at least 1."""
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise CaseError(f"{what} is {found!r}; it takes whole numbers of at least 1")


def case_class(text: str) -> type[TrainingCase]:
    """Import and validate the case `FILE::Class`; `FILE` is enough if it has only one case."""
    file, _, name = text.partition("::")
    path = Path(file).absolute()
    if not path.is_file() or path.suffix != ".py":
        problem = f"{file} is not a Python file" if path.is_file() else f"there is no file {file}"
        raise UsageError(f"{problem}; give FILE::Class")
    # Like pytest, so that a case can import other modules in its folder.
    sys.path.insert(0, str(path.parent))
    sys.modules.pop(path.stem, None)
    try:
        module = import_module(path.stem)
    except Exception as error:
        # A user's file may raise any exception.
        problem = f"{type(error).__name__}: {error}"
        raise UsageError(f"{file} cannot be imported ({problem}); run it to see where") from None
    cases = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, TrainingCase)
        and value.__module__ == path.stem
    }
    if not name and len(cases) == 1:
        (name,) = cases
    if name not in cases:
        known = ", ".join(f"{file}::{key}" for key in cases) or "none"
        raise UsageError(f"name a case in {file} as FILE::Class; there is {known}")
    validate_case(cases[name])
    return cases[name]
