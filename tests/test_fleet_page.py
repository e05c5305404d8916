"""The verdict on a sweep, as text, in formats for programs, and as a page."""

import csv
import io
import json
import random
import re
from pathlib import Path

import pytest
from browser import seen_in_chromium
from builders import results, results_text, run
from command_line import gpuscale
from simulated_fleet import Fleet, sweep_record

from gpuscale.judge.fleet import judge
from gpuscale.records.campaigns import NotMeasured
from gpuscale.records.record import to_json
from gpuscale.reports.campaign_text import FLEET_FORMATS, SweepView
from gpuscale.reports.page.fleet import fleet_html
from gpuscale.store.campaign_folders import SWEEP_JSON, SweepJob

BEGAN_S = 1.8e9


def view(
    *, slow: bool = True, reason: NotMeasured | None = "busy", repeated: bool = True
) -> SweepView:
    """A sweep of 40 nodes, of which one GPU is slow and one node has no measurement."""
    fleet = Fleet(rng=random.Random(1), nodes=39, gpus=2)
    name = fleet.slow_gpu(17, 1, 0.2) if slow else ""
    visits = fleet.sweep().visits if repeated else [fleet.visit(at, 0, at / 39) for at in range(39)]
    jobs = [
        SweepJob(node="nid0039", number=1, submitted_at_s=BEGAN_S, outcome=reason, detail="<fan>")
    ]
    record = sweep_record(
        [fleet.name(at) for at in range(40 if reason else 39)],
        gpus=(1, 2),
        partition="gpu",
        jobs=tuple(jobs if reason else ()),
    )
    return SweepView(
        record=record,
        nodes=judge(visits, not_measured={"nid0039": (reason, "<fan>")} if reason else {}),
        evidence={name: "hot"},
        exclude=name,
        clock_errors_s={"nid0003": -3600.0},
    )


def test_a_sick_gpu_is_named_with_what_is_known_of_it() -> None:
    first, sick, busy, clock, exclude = FLEET_FORMATS["text"](view()).splitlines()
    assert first == "SICK       1 of 40 nodes; 1 not measured (1 busy)"
    assert sick.startswith("nid0017    −2")
    assert sick.endswith(" %]   GPU 1: hot   in both of 2 jobs")
    assert clock.startswith("clock      nid0003 is 60 min behind the host of the sweep, whose")
    assert (busy, exclude) == ("busy       nid0039: <fan>", "exclude    nid0017")


@pytest.mark.parametrize(
    ("seen", "code", "word"),
    [
        (view(), 1, "SICK"),
        (view(repeated=False), 3, "UNCLEAR"),
        (view(slow=False), 5, "INCOMPLETE"),
        (view(slow=False, reason=None), 0, "OK"),
    ],
)
def test_every_format_tells_the_same_verdict(seen: SweepView, code: int, word: str) -> None:
    assert seen.exit_code_and_word == (code, word)
    assert FLEET_FORMATS["text"](seen).startswith(f"{word} ")
    document = json.loads(FLEET_FORMATS["json"](seen))
    assert (document["exit_code"], document["word"]) == (code, word)
    rows = [*csv.DictReader(io.StringIO(FLEET_FORMATS["csv"](seen)))]
    assert [row["state"] for row in rows] == [node["state"] for node in document["nodes"]]
    assert f'gpuscale_fleet_exit_code{{cluster="here",partition="gpu"}} {code}.0' in FLEET_FORMATS[
        "openmetrics"
    ](seen)


def test_the_page_ranks_the_nodes_and_lists_them_by_name() -> None:
    page = fleet_html(view())
    assert page.count("<circle") == 39
    assert page.index("nid0017: −2") < page.index("nid0000: ")
    heights = {row: y for y, row in re.findall(r'y="([\d.]+)"[^>]*>(nid\d+)…</text>', page)}
    cells = re.findall(r'<title>(nid\d+)[^<]*</title><text x="([\d.]+)" y="([\d.]+)"', page)
    assert len(cells) == 40
    assert all(y == heights[name[:-1]] for name, _, y in cells)
    assert len({(name[-1], x) for name, x, _ in cells}) == 10
    assert page.count('style="color:var(--loss)"') == 2
    assert page.count("<title>nid0017: −2") == 2
    assert re.search(r">−2\d</text>", page)
    assert "&lt;fan&gt;" in page


@pytest.mark.parametrize("width", [400, 1000])
def test_chromium_shows_all_of_the_page(tmp_path: Path, width: int) -> None:
    seen = seen_in_chromium(fleet_html(view()), width, tmp_path)
    assert (seen.overflow, seen.cut, seen.hidden, seen.unnamed) == (0, [], [], [])
    assert seen.figures == 2


def test_a_node_is_compared_with_itself_in_earlier_sweeps_of_the_same(
    tmp_path: Path,
) -> None:
    names = [f"n{number}" for number in range(6)]
    for day, case, slow in ((1, "case.py", 1.05), (2, "other.py", 1.5), (3, "case.py", 1.0)):
        folder = tmp_path / f"sweep-{day}"
        folder.mkdir()
        jobs = [
            SweepJob(node=name, number=1, submitted_at_s=BEGAN_S, outcome="measured")
            for name in names
        ]
        moment = f"2026-11-0{day}T01:00:00+00:00"
        record = sweep_record(names, case=case, created_at=moment, jobs=tuple(jobs))
        (folder / SWEEP_JSON).write_text(to_json(record))
        for number, job in enumerate(jobs):
            time_s = (0.2 + number / 1e4) * (slow if job.node == "n3" else 1)
            made = results(*(run(1, time_s, index=index) for index in (1, 2, 3)))
            (folder / job.results_name).write_text(results_text(made))
    first, third = (
        json.loads(gpuscale("fleet", "show", tmp_path / f"sweep-{day}", "--format", "json").stdout)
        for day in (1, 3)
    )
    assert {node["past"] for node in first["nodes"]} == {None}
    assert third["exit_code"] == 0
    past = {node["node"]: node["past"] for node in third["nodes"]}
    assert past["n3"] == pytest.approx(-0.0476, abs=0.003)
