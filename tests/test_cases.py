"""The names and properties of a case."""

import pytest

from gpuscale import TrainingCase


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("MnistCnn", "mnist_cnn"),
        ("Resnet50Cifar", "resnet50_cifar"),
        ("ResNet50V2", "res_net50_v2"),
        ("GPT", "gpt"),
        ("GPT2Small", "gpt2_small"),
        ("HTTPNet", "http_net"),
        ("MNISTNet", "mnist_net"),
        ("NaNs", "nans"),
    ],
)
def test_a_case_is_named_by_its_class_in_snake_case(written: str, name: str) -> None:
    case: type[TrainingCase] = type(written, (TrainingCase,), {})
    assert case.name() == name
