"""The shipped cases are those of their sources, and the examples of docs/cases.md run."""

import gzip
import importlib
import math
import re
from pathlib import Path

import pytest
import torch
from measuring import BENCH_CASES, REPOSITORY, run_pytest
from torch.utils.data import Dataset, Subset

from gpuscale import TrainingCase
from gpuscale.base.strategies import STRATEGIES
from gpuscale.measure.worker.data import LoadedBatches, PooledBatches, SyntheticDataset

MNIST = REPOSITORY.parent / "shared" / "data" / "mnist"
RESNET_V2 = "resnet_v2_cifar.Resnet50v2Cifar"
CASES = ("mnist_cnn.MnistCnn", "mnist_net.MnistNet", "resnet50.Resnet50", RESNET_V2)

needs_digits = pytest.mark.skipif(
    not MNIST.is_dir(), reason="the real digits are not here (../shared/data/mnist)"
)


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """A root as torchvision expects it, with the 10,000 real digits as both of its splits."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        content = gzip.decompress((MNIST / f"t10k-{kind}.gz").read_bytes())
        for split in ("train", "t10k"):
            (raw / f"{split}-{kind}").write_bytes(content)
    return tmp_path


def shipped(name: str) -> TrainingCase:
    """A shipped case, imported late for torchvision, which takes as long as torch."""
    module, _, kind = name.partition(".")
    case = getattr(importlib.import_module(f"bench_cases.test_{module}"), kind)()
    assert isinstance(case, TrainingCase)
    return case


def parameters(case: TrainingCase) -> int:
    return sum(p.numel() for p in case.model().parameters())


def test_models_have_the_sizes_of_their_sources() -> None:
    # Counted by hand from the layers that the sources list.
    cnn = (64 * 9 + 64) + (64 * 64 * 9 + 64) + (64 * 128 * 9 + 128) + (128 * 128 * 9 + 128)
    assert parameters(shipped("mnist_cnn.MnistCnn")) == cnn + 128 * 10 + 10
    net = (32 * 9 + 32) + (32 * 64 * 9 + 64) + (9216 * 128 + 128) + (128 * 10 + 10)
    assert parameters(shipped("mnist_net.MnistNet")) == net
    assert parameters(shipped("resnet50.Resnet50")) == 25_557_032
    # Keras counts the running statistics too, and publishes both models without their last layer.
    deeper = "resnet_v2_cifar.Resnet152v2Cifar"
    for case, published in ((shipped(RESNET_V2), 23_564_800), (shipped(deeper), 58_331_648)):
        statistics = sum(its.numel() for its in case.model().buffers() if its.dim())
        assert parameters(case) + statistics == published + 2048 * 10 + 10


def sized(case: TrainingCase, name: str) -> TrainingCase:
    case.size = case.named_size(name)
    return case


def test_the_language_model_has_the_size_of_gpt_2_and_a_tenth_of_it_to_try() -> None:
    def counted(words: int, context: int, width: int, blocks: int) -> int:
        # Norms; attention and projection; the two layers that follow.
        block = 4 * width + (4 * width**2 + 4 * width) + (8 * width**2 + 5 * width)
        return (2 * words + context + 2) * width + blocks * block

    with torch.device("meta"):
        full, smoke = (parameters(sized(shipped("gpt.Gpt"), size)) for size in ("full", "smoke"))
    assert full == counted(24_576, 1024, 768, 12) == 123_591_168
    assert smoke == counted(4_096, 32, 320, 6) == 10_030_080


def test_the_language_model_learns_the_next_token_and_decays_matrices_only() -> None:
    case = sized(shipped("gpt.Gpt"), "smoke")
    inputs, target = case.sample(3, case.size)
    assert inputs.dtype == torch.int64
    assert torch.equal(inputs[1:], target[:-1])
    model = case.model()
    assert case.loss(model(inputs[None]), target[None]).item() == pytest.approx(8.3, abs=0.5)
    groups = case.optimizer(model, 1).param_groups
    decays = {p.dim() > 1: group["weight_decay"] for group in groups for p in group["params"]}
    assert decays == {True: 0.1, False: 0}


def test_optimisers_are_those_of_their_sources() -> None:
    model = torch.nn.Linear(1, 1)
    adam = shipped("mnist_cnn.MnistCnn").optimizer(model, 4)
    assert (type(adam).__name__, adam.defaults["lr"]) == ("Adam", 1e-3)
    adadelta = shipped("mnist_net.MnistNet").optimizer(model, 2)
    assert (type(adadelta).__name__, adadelta.defaults["lr"]) == ("Adadelta", 1.0)
    schedule = shipped("mnist_net.MnistNet").scheduler(adadelta)
    assert isinstance(schedule, torch.optim.lr_scheduler.StepLR)
    assert (schedule.step_size, schedule.gamma) == (1, 0.7)
    assert shipped("resnet50.Resnet50").optimizer(model, 4).defaults["lr"] == 0.02
    assert shipped(RESNET_V2).optimizer(model, 4).defaults["lr"] == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("name", "batches"),
    [
        ("mnist_cnn.MnistCnn", {1: 128, 4: 128}),
        ("mnist_net.MnistNet", {1: 128, 2: 64}),
        ("resnet50.Resnet50", {4: 256, 16: 128}),
        (RESNET_V2, {4: 256}),
    ],
)
def test_batch_sizes_are_those_of_sources(name: str, batches: dict[int, int]) -> None:
    case = shipped(name)
    assert {n: case.batch_per_gpu(case.named_size("full"), n) for n in batches} == batches


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size_name", ["smoke", pytest.param("full", marks=pytest.mark.thorough)])
def test_synthetic_samples_are_reproducible(name: str, size_name: str) -> None:
    case = shipped(name)
    case.size = case.named_size(size_name)
    sample, label = SyntheticDataset(case)[70]
    again, same_label = SyntheticDataset(case)[70]
    assert tuple(sample.shape) == case.size.sample_shape
    assert sample.dtype == torch.float32
    assert torch.equal(sample, again)
    assert 0 <= label == same_label < case.classes


@pytest.mark.parametrize(("raw", "resized"), [((8, 8, 3), False), ((12, 20, 3), True)])
def test_a_case_with_images_alone_gets_floats(raw: tuple[int, ...], resized: bool) -> None:
    class Pictures(TrainingCase):
        sample_shape, batch, raw_image_shape = (3, 8, 8), 2, raw

    case = Pictures()
    case.size = case.named_size(None)
    sample, _ = SyntheticDataset(case)[0]
    assert (sample.shape, sample.dtype) == ((3, 8, 8), torch.float32)
    assert 0 <= sample.min() < sample.max() <= 1
    # To resize what has the shape already takes a third of the time again.
    assert ("Resize" in str(case.transform(case.size))) is resized


def test_pooled_batches_are_those_of_the_case_have_no_end_and_differ_between_ranks() -> None:
    case = shipped("mnist_cnn.MnistCnn")
    size = case.size = case.named_size("smoke")

    def labels(rank: int) -> list[list[int]]:
        dataset = SyntheticDataset(case)
        batches = PooledBatches(dataset, batch=size.batch, rank=rank, pin_memory=False)
        found = [next(batches) for _ in range(200)]
        assert {tuple(inputs.shape) for inputs, _ in found} == {(size.batch, *size.sample_shape)}
        assert batches.epoch == 0
        return [targets.tolist() for _, targets in found]

    assert labels(0) == labels(0) != labels(1)


def test_ranks_share_the_data_without_overlap_and_epochs_are_shuffled_anew() -> None:
    class Numbers(Dataset[tuple[torch.Tensor, int]]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return torch.tensor([float(index)]), index

    def epoch(rank: int, batches: LoadedBatches) -> list[int]:
        return [int(label) for _ in range(4) for label in next(batches)[1]]

    ranks = [
        LoadedBatches(Numbers(), batch=5, rank=r, world_size=2, workers=0, pin_memory=False)
        for r in range(2)
    ]
    first = [epoch(r, batches) for r, batches in enumerate(ranks)]
    second = [epoch(r, batches) for r, batches in enumerate(ranks)]
    assert sorted(first[0] + first[1]) == list(range(40))
    assert sorted(second[0] + second[1]) == list(range(40))
    assert first != second


@needs_digits
def test_mnist_cnn_guesses_the_real_digits_until_it_is_trained(digits: Path) -> None:
    case = shipped("mnist_cnn.MnistCnn")
    training = case.real_dataset(digits, case.named_size("smoke"), download=False)
    assert isinstance(training, Subset)
    assert len(training) == 8500
    images, labels = zip(*(training[number] for number in range(64)), strict=True)
    loss = case.loss(case.model()(torch.stack(images)), torch.tensor(labels))
    assert loss.item() == pytest.approx(math.log(10), abs=0.3)


@needs_digits
def test_a_session_trains_on_real_data_and_says_so(digits: Path, tmp_path: Path) -> None:
    session = run_pytest(
        tmp_path,
        str(BENCH_CASES / "test_mnist_net.py"),
        *("--gpus", "2", "--runs", "1", "--device", "cpu", "--strategy", "ddp"),
        *("--data-root", str(digits), "--run-seconds", "0.1"),
    ).ended()
    (run,) = session.results.runs
    assert run.configuration.data == "real"
    assert run.configuration.scaling == "strong"
    assert run.batch_per_gpu == 32
    assert "real data" in session.output


def test_a_case_is_named_by_its_class_in_snake_case() -> None:
    names = {"MnistCnn": "mnist_cnn", "Resnet50Cifar": "resnet50_cifar", "GPT": "gpt"}
    names |= {"ResNet50V2": "res_net50_v2", "GPT2Small": "gpt2_small", "HTTPNet": "http_net"}
    for written, name in (names | {"MNISTNet": "mnist_net", "NaNs": "nans"}).items():
        case: type[TrainingCase] = type(written, (TrainingCase,), {})
        assert case.name() == name


PAGE = (REPOSITORY / "docs" / "cases.md").read_text(encoding="utf-8")
QUICK = ("--device", "cpu", "--runs", "1", "--run-seconds", "0.2")


def write_examples(folder: Path) -> list[str]:
    """The files of the page's examples, in order."""
    blocks: list[str] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for number, block in enumerate(blocks):
        (folder / f"test_{number}.py").write_text(block)
    return [f"test_{number}.py" for number in range(len(blocks))]


@pytest.mark.parametrize("data", [(), ("--data", "loader", "--data-workers", "1")])
def test_the_examples_are_measured_as_they_stand(tmp_path: Path, data: tuple[str, ...]) -> None:
    write_examples(tmp_path)
    session = run_pytest(tmp_path, *QUICK, "--gpus", "2", *data).ended()
    trained = {run.configuration.case for run in session.results.runs if run.is_valid}
    assert trained == {"spectra", "captions", "language"}


def test_the_example_with_own_data_loads_them(tmp_path: Path) -> None:
    spectra = write_examples(tmp_path)[0]
    data = tmp_path / "data"
    data.mkdir()
    for number in range(2):
        labels = torch.arange(64) % 4
        torch.save({"values": torch.rand(64, 256), "labels": labels}, data / f"{number}.pt")
    asked = ("--gpus", "1", "--data-root", str(data))
    (run,) = run_pytest(tmp_path, spectra, *QUICK, *asked).ended().results.runs
    assert run.configuration.data == "real"


def test_a_test_asserts_on_the_run_as_the_page_says(tmp_path: Path) -> None:
    (asserted,) = re.findall(r"^    (assert scaling\(\).*)$", PAGE, re.MULTILINE)
    spectra = tmp_path / write_examples(tmp_path)[0]
    fast, ahead = asserted.replace("0.05", "60"), asserted.replace("0.05", "0")
    for line, exit_code in ((fast, 0), (ahead, 1)):
        call = re.compile(r"^    (scaling\(\)|assert .*)$", re.MULTILINE)
        spectra.write_text(call.sub(f"    {line}", spectra.read_text()))
        answer = run_pytest(tmp_path, spectra.name, *QUICK, "--gpus", "1").ended(exit_code)
        assert re.search(r"^results: ", answer.output, re.MULTILINE)
        told = "\nas a baseline, if strong enough: gpuscale baseline record .gpuscale/results/"
        assert (told in answer.output) is (exit_code == 0)


def test_the_page_names_everything_that_a_case_can_say_and_every_option_of_ddp() -> None:
    public = {name for name in vars(TrainingCase) if not name.startswith("_")}
    for name in public - {"default_strategy", "options_text", "named_size"}:
        assert re.search(rf"`{name}[`(]", PAGE), name
    for option in STRATEGIES["ddp"].options:
        assert f"`{option}`" in PAGE
