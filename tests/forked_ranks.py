"""Ranks without a session, forked from the process that has imported torch."""

import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import free_port
from warm_sessions import WarmProcess

from gpuscale.measure.worker.strategies.data_parallel import ProcessGroupStrategy

PATIENCE_S = 60.0


def answers_of(count: int, work: Callable[..., None], *shared: object) -> list[tuple[Any, ...]]:
    """What each rank answers, which begins with its number.

    Each calls `work` with that, a port, the folder of the answers, and what all of them share.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        asked = (free_port(), folder, *shared)
        # Where the module of `work` is found comes first.
        paths, call = pickle.dumps(sys.path), pickle.dumps((work, asked))
        (folder / "asked").write_bytes(paths + call)
        ranks = []
        for rank in range(count):
            words = (f"{__name__}:be_rank", str(folder / "asked"), str(rank))
            here = Path(__file__).parent
            ranks.append(WarmProcess(here, words, os.environ, folder / f"log-{rank}"))
        for process in ranks:
            process.wait(3 * PATIENCE_S)
        answers = [folder / f"answer-{rank}" for rank in range(count)]
        if not all(path.exists() for path in answers):
            pytest.fail("\n".join(log.read_text() for log in folder.glob("log-*")))
        return [pickle.loads(path.read_bytes()) for path in answers]


def be_rank(asked: str, rank: str) -> None:
    with Path(asked).open("rb") as file:
        sys.path[:] = pickle.load(file)
        work, arguments = pickle.load(file)
    work(int(rank), *arguments)


def answer(folder: Path, strategy: ProcessGroupStrategy, *what: object) -> None:
    """End this rank with an answer."""
    (folder / f"answer-{strategy.rank}").write_bytes(pickle.dumps((strategy.rank, *what)))
    strategy.barrier()
    os._exit(0)
