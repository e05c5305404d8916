"""The way from a forked process into the worker, which no module of this layer imports."""

import importlib


def enter_rank(directory: str) -> None:
    """Be a rank of the run in `directory`."""
    importlib.import_module("gpuscale.worker.entry").main(directory)


def describe_machine(path: str, device: str) -> None:
    """Write the machine's Environment to `path`."""
    importlib.import_module("gpuscale.worker.description").main(path, device)
