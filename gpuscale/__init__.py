"""gpuscale: detect regressions in multi-GPU training speed and scaling, and find their causes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuscale.workload.cases import Size, TrainingCase
    from gpuscale.workload.command_case import CommandCase
    from gpuscale.workload.step_report import report

__version__ = "0.1.0"
__all__ = ["CommandCase", "Size", "TrainingCase", "__version__", "report"]

_HOMES = {
    "CommandCase": "workload.command_case",
    "Size": "workload.cases",
    "TrainingCase": "workload.cases",
    "report": "workload.step_report",
}


def __getattr__(name: str) -> object:
    # The pytest plugin imports this package in every project of the environment,
    # so names that only cases need are imported on first use.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"gpuscale.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'gpuscale' has no attribute {name!r}")
