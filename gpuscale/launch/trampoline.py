"""The way from a forked process into the worker, which no module of this layer imports."""

import importlib


def enter_rank(directory: str) -> None:
    """Be a rank of the run in `directory`."""
    importlib.import_module("gpuscale.worker.entry").main(directory)


def enter_overhead_rank(directory: str) -> None:
    """Be a rank that holds gpuscale's windows against a bare loop."""
    importlib.import_module("gpuscale.worker.overhead").main(directory)


def probe_node(directory: str, device: str) -> None:
    """Be the one rank of a node that looks at how it computes and communicates."""
    importlib.import_module("gpuscale.worker.node_probe").main(directory, device)


def describe_machine(path: str, device: str) -> None:
    """Write the machine's Environment to `path`."""
    importlib.import_module("gpuscale.worker.description").main(path, device)
