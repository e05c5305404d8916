"""Where an exception comes from: the line of the user's code that raised it."""

import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

import torch

from gpuscale.base.errors import as_place as as_place

_PATHS = sysconfig.get_paths()
_NOT_THE_USERS = (
    Path(__file__).parents[2],
    Path(torch.__file__).parent,
    Path(_PATHS["stdlib"]),
    Path(_PATHS["platstdlib"]),
)
_INSTALLED = {"site-packages", "dist-packages"}


def line_of_user(error: BaseException) -> str | None:
    """The innermost line of the user's own code, `test_mine.py:12`; None where there is none."""
    lines = [each for each in traceback.extract_tb(error.__traceback__) if _is_users(each.filename)]
    if not lines:
        return None
    return as_place(lines[-1].filename, lines[-1].lineno)


def traceback_text(error: BaseException) -> str:
    """The traceback from the first line of the user's own code on; whole where there is none."""
    first: TracebackType | None = error.__traceback__
    while first is not None and not _is_users(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    shown = first or error.__traceback__
    return "".join(traceback.format_exception(type(error), error, shown))


def _is_users(file: str) -> bool:
    path = Path(file)
    return (
        path.is_absolute()
        and not any(path.is_relative_to(folder) for folder in _NOT_THE_USERS)
        and _INSTALLED.isdisjoint(path.parts)
    )
