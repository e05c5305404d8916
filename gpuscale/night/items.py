"""What became of pytest's items, out of its JUnit XML."""

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

_RIGHTLY_LEFT_OUT = ("settled after", "measured before")
"""Items that needed no run: the reasons of plugin/session.py."""
_NOT_COLLECTED = "collection failure"
"""How pytest marks a file or a test that it could not make items of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """Of one invocation of pytest; each item stands for a run that was asked for."""

    count: int
    left_out: tuple[str, ...]
    """Why items gave no number although nothing failed, each reason once: a night asks only for
    what its nodes have."""
    uncollected: tuple[str, ...] = ()
    """Files and tests that no items could be made of, such as a case that cannot be imported."""


def read_items(path: Path) -> Items:
    """The items in pytest's XML file; none where it is missing or broken, as after a crash."""
    try:
        suite = ET.parse(path).getroot()
    except (OSError, ET.ParseError):
        return Items(count=0, left_out=())
    reasons = [skipped.get("message", "") for skipped in suite.iter("skipped")]
    wrongly = [reason for reason in reasons if not reason.startswith(_RIGHTLY_LEFT_OUT)]
    cases = list(suite.iter("testcase"))
    return Items(
        count=len(cases),
        left_out=tuple(dict.fromkeys(wrongly)),
        uncollected=tuple(case.get("name", "") for case in cases if _is_uncollected(case)),
    )


def _is_uncollected(case: ET.Element) -> bool:
    return any(error.get("message") == _NOT_COLLECTED for error in case.iter("error"))
