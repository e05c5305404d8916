"""A sweep by programs that stand in for Slurm, and its verdict in every format."""

import csv
import io
import json
import random
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from browser import seen_in_chromium
from builders import environment, results, results_text, run
from changing import replace
from ci_checkout import write_program
from command_line import gpuscale, refusal
from simulated_fleet import Fleet, sweep_record

from gpuscale.campaigns import fleet
from gpuscale.cli.fleet import view_of_sweep
from gpuscale.judge.fleet import judge
from gpuscale.measure.schedulers.slurm import expanded, folded
from gpuscale.records.cause import NodeVerdict, NodeVisit, NotMeasured
from gpuscale.records.record import to_json
from gpuscale.reports.campaign_text import FLEET_FORMATS, SweepView
from gpuscale.reports.page.fleet import fleet_html
from gpuscale.store.campaign_folders import SWEEP_JSON, SweepJob, read_sweep

NAMES = [f"n{number:02}" for number in range(20)]


@dataclass
class Machine:
    """Nodes with a speed and a clock of their own; a job is done as soon as it is submitted."""

    folder: Path
    rng: random.Random
    drift: float = 0.0
    """Log step time that each job adds for all later ones."""
    effects: dict[str, float] = field(default_factory=dict)
    ahead_s: Mapping[str, float] = field(default_factory=dict)
    busy: str = ""
    """A node on which no job ever starts."""
    late: str = ""
    """A node whose job has results only after 40 answers of Slurm, most of them failures."""
    jobs: int = 0

    def sweep(self, day: int = 3) -> Path:
        """Measure all nodes on a day of November, and return the folder of the sweep."""
        place = self.folder / f"here-2026-11-0{day}"
        place.mkdir()
        record = sweep_record(NAMES, created_at=f"2026-11-0{day}T03:00:00+00:00")
        (place / SWEEP_JSON).write_text(to_json(record))

        def submit(job: SweepJob, queued_as: str) -> str:
            self.jobs += 1
            if job.node == self.busy:
                queue = self.folder / "queue"
                queue.write_text(f"{self.jobs}|PENDING|{queued_as}\n")
                return str(self.jobs)
            level = self.drift * self.jobs + self.effects.get(job.node, 0.0)
            began_s = time.time() + self.ahead_s.get(job.node, 0.0)
            times_s = [0.1 * (1 + level + self.rng.gauss(0, 0.001)) for _ in range(3)]
            runs = (run(1, time_s, index=index) for index, time_s in enumerate(times_s, start=1))
            begun = (replace(each, started_at_s=began_s) for each in runs)
            made = results(*begun, where=environment(job_id=str(self.jobs)))
            (place / job.results_name).write_text(results_text(made))
            if job.node == self.late:
                (place / job.results_name).rename(self.folder / "late")
                (self.folder / "place").symlink_to(place / job.results_name)
            return str(self.jobs)

        fleet.Sweep(place, record, submit, lambda _: None, 2).run()
        return place


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose Slurm has all nodes idle, no queue, and jobs that have ended well."""
    nodes = "\n".join(f"{name}|main|idle|(null)|2|none" for name in NAMES)
    programs = {
        "sinfo": f"echo '{nodes}'",
        "squeue": f"cat {tmp_path}/queue",
        "scancel": f"echo -n >{tmp_path}/queue",
        "scontrol": "echo 'JobId=1 JobState=COMPLETED ExitCode=0:0'",
    }
    (tmp_path / "queue").touch()
    for name, line in programs.items():
        write_program(tmp_path / "bin" / name, f"#!/bin/sh\n{line}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(fleet, "_POLL_S", 0.0)
    return Machine(tmp_path, random.Random(3))


def jobs_of(place: Path) -> Counter[str]:
    return Counter(path.name[:3] for path in place.glob("n*.jsonl"))


def test_a_node_slower_only_than_its_past_gets_a_second_job_and_is_sick(machine: Machine) -> None:
    machine.effects = {name: machine.rng.gauss(0, 0.03) for name in NAMES}
    machine.effects["n04"] = -0.03
    for day in (1, 2):
        machine.sweep(day)
    machine.effects["n04"] += 0.05
    place = machine.sweep()
    first = view_of_sweep(place).nodes[0]
    assert (first.node, first.state, first.against) == ("n04", "sick", "past")
    assert jobs_of(place)["n04"] == 2
    # The level of the machine must be known when the suspect is measured again.
    jobs = read_sweep(place).jobs
    again = [(job.node, job.is_control) for job in jobs[-5:]]
    assert again[-1] == ("n04", False)
    assert len({node for node, is_control in again if is_control}) == 4


def test_a_node_whose_job_never_starts_is_busy_and_its_job_is_cancelled(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "_PATIENCE_S", 1.0)
    machine.busy = "n07"
    view = view_of_sweep(machine.sweep())
    assert {node.node for node in view.nodes if node.state == "healthy"} == {*NAMES} - {"n07"}
    assert FLEET_FORMATS["text"](view).endswith("\nbusy       n07: idle")
    assert (machine.folder / "queue").read_text() == ""


def test_a_job_is_lost_only_if_slurm_does_not_know_it_many_times_in_a_row(machine: Machine) -> None:
    machine.late = "n07"
    polls, late = machine.folder / "polls", machine.folder / "late"
    write_program(
        machine.folder / "bin" / "scontrol",
        f"""#!/bin/sh
if test -e {late}; then
    echo poll >>{polls}
    number=$(wc -l <{polls})
    test $number -lt 40 || mv {late} "$(readlink {machine.folder}/place)"
    test $((number % 8)) -eq 0 || exit 1
    test ! -e {late} || {{ echo 'JobId=1 JobState=RUNNING ExitCode=0:0'; exit; }}
fi
echo 'JobId=1 JobState=COMPLETED ExitCode=0:0'
""",
    )
    view = view_of_sweep(machine.sweep())
    assert len(polls.read_text().split()) == 40
    assert {node.state for node in view.nodes} == {"healthy"}


def test_a_clock_that_is_an_hour_off_makes_no_node_slow_and_is_named(machine: Machine) -> None:
    """The last node would be compared with the first ones, before the machine became slower."""
    machine.drift, machine.ahead_s = 0.002, {"n19": -3600.0, "n00": 3600.0}
    place = machine.sweep()
    view = view_of_sweep(place)
    assert {node.state for node in view.nodes} == {"healthy"}
    text = FLEET_FORMATS["text"](view)
    assert "clock      n19 is 60 min behind the host" in text
    assert "clock      n00 is 60 min ahead of the host" in text


def test_a_fleet_is_judged_at_its_end(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[int] = []

    def counted(
        visits: Sequence[NodeVisit], past: Sequence[Sequence[NodeVisit]]
    ) -> Sequence[NodeVerdict]:
        judged.append(len({visit.node for visit in visits}))
        return judge(visits, past)

    monkeypatch.setattr(fleet, "judge", counted)
    place = machine.sweep()
    assert min(judged) >= len(NAMES) - 2
    assert len(judged) <= 1 + jobs_of(place).total() - len(NAMES) + 2


def test_a_sweep_of_another_machine_is_not_continued_here(machine: Machine) -> None:
    place = machine.folder / "there"
    place.mkdir()
    record = sweep_record(["x1", "x2"], cluster="there")
    (place / SWEEP_JSON).write_text(to_json(record))
    said = refusal("fleet", "run", "--resume", place.parent, cwd=machine.folder)
    assert "is not the folder of a sweep (it has no sweep.json)" in said
    said = refusal("fleet", "run", "--resume", place, "--runs", "4", cwd=machine.folder)
    assert "--resume continues a sweep as it was begun; leave out --runs" in said
    said = refusal("fleet", "run", "--resume", place, cwd=machine.folder)
    assert "Slurm knows none of these nodes of there; continue it there, or name" in said


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        (("nid0102", "nid0417", "nid0418"), "nid[0102,0417-0418]"),
        (("n3", "n10", "n1", "login"), "login,n[1,3,10]"),
        (("x1000c0s0b0n0", "x1000c0s0b0n1", "x1001c0s0b0n0"), "x1000c0s0b0n[0-1],x1001c0s0b0n0"),
        (("@gpu", "n1"), "@gpu,n1"),
        ((), ""),
    ],
)
def test_names_of_nodes_are_folded_as_slurm_reads_them(names: Sequence[str], listed: str) -> None:
    assert folded(names) == listed
    assert expanded(listed) == {*names}


def test_results_of_another_machine_in_the_folder_of_a_sweep_are_refused(machine: Machine) -> None:
    place = machine.sweep()
    elsewhere = results(run(1, 0.1), where=environment(job_id="777"))
    (place / "n07-1.jsonl").write_text(results_text(elsewhere))
    said = refusal("fleet", "show", place, cwd=machine.folder)
    assert "n07-1.jsonl: was written by job 777 on" in said


def view(
    *, slow: bool = True, reason: NotMeasured | None = "busy", repeated: bool = True
) -> SweepView:
    """A sweep of 40 nodes, of which one GPU is slow and one node has no measurement."""
    fleet = Fleet(rng=random.Random(1), nodes=39, gpus=2)
    name = fleet.slow_gpu(17, 1, 0.2) if slow else ""
    visits = fleet.sweep().visits if repeated else [fleet.visit(at, 0, at / 39) for at in range(39)]
    lost = SweepJob(node="nid0039", number=1, submitted_at_s=1.8e9, outcome=reason, detail="<fan>")
    names = [fleet.name(at) for at in range(40 if reason else 39)]
    jobs = (lost,) if reason else ()
    record = sweep_record(names, gpus=(1, 2), partition="gpu", jobs=jobs)
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
    shown = FLEET_FORMATS["openmetrics"](seen)
    assert f'gpuscale_fleet_exit_code{{cluster="here",partition="gpu"}} {code}.0' in shown


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


def test_chromium_shows_all_of_the_page_at_every_width(tmp_path: Path) -> None:
    for seen in seen_in_chromium(fleet_html(view()), tmp_path, 400, 1000):
        assert (seen.overflow, seen.cut, seen.hidden, seen.unnamed) == (0, [], [], [])
        assert seen.figures == 2


def test_a_node_is_compared_with_itself_in_earlier_sweeps_of_the_same(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(6)]
    for day, case, slow in ((1, "case.py", 1.05), (2, "other.py", 1.5), (3, "case.py", 1.0)):
        folder = tmp_path / f"sweep-{day}"
        folder.mkdir()
        jobs = [
            SweepJob(node=name, number=1, submitted_at_s=1.8e9, outcome="measured")
            for name in names
        ]
        moment = f"2026-11-0{day}T01:00:00+00:00"
        record = sweep_record(names, case=case, created_at=moment, jobs=tuple(jobs))
        (folder / SWEEP_JSON).write_text(to_json(record))
        for number, job in enumerate(jobs):
            time_s = (0.2 + number / 1e4) * (slow if job.node == "n3" else 1)
            made = results(*(run(1, time_s, index=index) for index in (1, 2, 3)))
            (folder / job.results_name).write_text(results_text(made))
    shown = (gpuscale("fleet", "show", tmp_path / f"sweep-{n}", "--format=json") for n in (1, 3))
    first, third = (json.loads(answer.stdout) for answer in shown)
    assert {node["past"] for node in first["nodes"]} == {None}
    assert third["exit_code"] == 0
    past = {node["node"]: node["past"] for node in third["nodes"]}
    assert past["n3"] == pytest.approx(-0.0476, abs=0.003)
