"""Tables that people keep by hand: what is read, and how a wrong cell is named."""

import re
import shlex
from pathlib import Path

import command_line
import pytest
from changing import replace
from command_line import gpuscale
from statements import known

from gpuscale.base.errors import DecodeError
from gpuscale.records import PublishedFigure
from gpuscale.store.files import read_baseline
from gpuscale.store.imports.session import Defaults, Session
from gpuscale.store.imports.table import sessions
from gpuscale.store.imports.table_columns import HEADERS, parse_header

PAGE = Path(__file__).parent.parent / "docs" / "baselines.md"
DEFAULTS = Defaults(
    case="resnet50", strategy="ddp", batch_per_gpu=256, timed="job", gpus_per_node=4
)


def nights(text: str, defaults: Defaults = DEFAULTS) -> list[Session]:
    return [*sessions(PAGE, text, defaults)]


def read(text: str, defaults: Defaults = DEFAULTS) -> tuple[PublishedFigure, ...]:
    published = (value.published for night in nights(text, defaults) for value in night.values)
    figures = {each.key: each for each in published if isinstance(each, PublishedFigure)}
    return tuple(figures.values())


def refusals(text: str, defaults: Defaults = DEFAULTS) -> list[str]:
    with pytest.raises(DecodeError) as refused:
        nights(text, defaults)
    messages = [*refused.value.rows] or [str(refused.value)]
    assert all(message.isprintable() for message in messages)
    return messages


def refusal(text: str, defaults: Defaults = DEFAULTS) -> str:
    (message,) = refusals(text, defaults)
    return message


def test_a_markdown_table_within_other_text_is_read() -> None:
    text = """# Scaling

| GPUs | Wall clock (min) | batch/GPU | note    |
|-----:|:----------------:|-----------|---------|
| 1    | 342.5            | 256       |         |
| **16** | 24:48.169      | `128`     | a b     |

| GPU | 3 |
"""
    one, many = read(text)
    assert (one.gpus, one.nodes, one.batch_per_gpu, one.note) == (1, 1, 256, None)
    assert one.times_s == (342.5 * 60,)
    assert (many.gpus, many.nodes, many.batch_per_gpu, many.note) == (16, 4, 128, "a b")
    assert many.times_s == pytest.approx((24 * 60 + 48.169,))
    assert (many.case, many.strategy, many.timed, many.runs) == ("resnet50", "ddp", "job", 1)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_is_read_whatever_separates_it(delimiter: str) -> None:
    rows = [["case", "n", "images/s", "strategy"], ["a", "1", "360", "DDP"]]
    rows += [["b", "8", "2650.5", "mine"]]
    text = "\ufeff# kept by hand\n\n" + "\r\n".join(delimiter.join(row) for row in rows)
    one, many = read(text)
    assert (one.case, one.samples_per_s, one.strategy, one.timed) == ("a", 360, "ddp", None)
    assert (many.case, many.samples_per_s, many.strategy) == ("b", 2650.5, "mine")
    assert many.nodes == 2


@pytest.mark.parametrize(
    ("header", "cell", "seconds"),
    [
        ("time (s)", "1.45e2", 145),
        ("time_ms", "3", 0.003),
        ("Wall time [h]", "3", 10800),
        ("time", "5:42:11.864", 5 * 3600 + 42 * 60 + 11.864),
        ("time", "342 m 11.864 s", 342 * 60 + 11.864),
        ("time", "2min25s", 145),
        ("time", "412 ms", 0.412),
    ],
)
def test_times_are_in_units_of_the_cell_or_header(header: str, cell: str, seconds: float) -> None:
    (figure,) = read(f"gpus;{header}\n1;{cell}\n")
    assert figure.times_s == pytest.approx((seconds,))


@pytest.mark.parametrize(
    ("header", "cell", "samples_per_s"),
    [
        ("Throughput (img/s)", "1563", 1563),
        ("Images per sec", "1563", 1563),
        ("step time (ms)", "500", 2048),
    ],
)
def test_a_step_time_may_give_the_throughput(header: str, cell: str, samples_per_s: float) -> None:
    (figure,) = read(f"GPUs;{header};Batch size (per GPU)\n4;{cell};256\n")
    assert (figure.samples_per_s, figure.batch_per_gpu, figure.timed) == (samples_per_s, 256, None)


def test_several_times_are_repetitions_in_a_cell_or_in_rows() -> None:
    text = "| n | epoch time |\n|---|---|\n| 1 | 49, 45, 45 |\n| 2 | 26; 24 |\n| 2 | 24 |\n"
    one, two = read(text, replace(DEFAULTS, timed="epoch"))
    assert (one.times_s, one.runs) == ((49, 45, 45), 1)
    assert (two.times_s, two.runs) == ((26, 24, 24), 2)
    (jobs,) = read("n,time\n1,145\n1,147\n")
    assert (jobs.times_s, jobs.runs) == ((145, 147), 2)
    (counted,) = read("n,time,runs\n1,145,5\n")
    assert counted.runs == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n,time\n1,145\n2,84;x\n", "line 3: column 'time': expected a time such as 145, 2:25 or"),
        ("n,time\n1,\n", "line 1: the table has no rows with a figure"),
        ("n,time\n1,0\n", "line 2: column 'time': "),
        ("n,time\n2.5,145\n", "line 2: column 'n': expected a whole number, found text '2.5'"),
        ("n,time\n,145\n", "line 2: column 'n': expected a whole number, found text ''"),
        ("n,time\n1,145,7\n", "line 2: 3 cells under 2 headers (line 1); give each header its"),
        ('n,time\n1,"145\n', "line 2: not a line of a table: unexpected end of data"),
        ("n,time,colour\n1,145,red\n", "line 1: column 'colour': not known; make it part of the"),
        ("n,time,runtime\n1,145,145\n", "line 1: column 'runtime': means the same as 'time'"),
        ("n,nodes\n1,1\n", "line 1: expected a column of times or of throughput, found none"),
        ("n,time (parsec)\n1,1\n", "line 1: column 'time (parsec)': not known; make it part"),
        ("n;img/s\n1;1,563\n", "line 2: column 'img/s': expected a number such as 1520.5, found"),
        ("n,img/s\n1,390 402\n", "line 2: column 'img/s': expected a number such as 1520.5"),
        ("n,img/s,date\n1,3,09/01/2026\n", "line 2: column 'date': expected a date such as 2026-"),
        ("n,time,nodes\n2,9,1\n2,8,2\n", "line 3: resnet50/ddp on 2 GPUs has another batch or"),
        ("n,time,nodes\n8,9,9\n", "line 2: 8 GPUs cannot lie on 9 nodes"),
        ("time\n1\n", "line 1: no column of GPUs; name it 'gpus', or name one with --column"),
        ("", "line 1: no column of GPUs; name it 'gpus', or name one with --column"),
        ("|n|time|\n|-|-|\n|1|2|\n\n" * 2, "line 1: several tables (lines 1, 5"),
        ("n,time\n1,\x1b[2J\n", "line 2: column 'time': expected a time such as 145, 2:25 or"),
    ],
)
def test_what_cannot_be_read_is_named_by_line_and_column(text: str, message: str) -> None:
    assert refusals(text)[0].startswith(message)


def test_what_neither_table_nor_options_say_is_asked_for() -> None:
    bare = Defaults(timed="job")
    text = "n,time,case,strategy,batch\n1,9,,,\n"
    every = "no case and no strategy and no batch; fill the cell, or give --case and --strategy"
    assert refusal(text, bare) == f"line 2: {every} and --batch-per-gpu"
    assert "no strategy" in refusal("n,time,case\n1,9,a\n", bare)
    assert "no batch" in refusal("n,time,case,strategy\n1,9,a,ddp\n", bare)
    span, rest = refusals("n,time\n1,9\n", Defaults())
    assert "say with --timed" in span
    assert "no case" in rest


def test_every_header_that_is_known_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for meaning, names in HEADERS.items():
        for name in names:
            column = parse_header(name.upper())
            assert known(column).meaning == meaning
            assert re.search(rf"`{re.escape(name)}`", page), name


def test_dates_make_nights_and_a_column_of_machines_is_chosen_from() -> None:
    text = """| Date | Machine | GPUs | img/s | Time/epoch | Speedup |
|---|---|---|---|---|---|
| 2026-09-02 | Booster | 4 | 1570 | 820 | 3.9 |
| 2026-09-01 | booster | 4 | 1560 | 821 | |
| 2026-09-01 | Booster | 4 | 1562 | 822 | |
| 2026-09-01 | ARC4 | 4 | – | – | |
| 2026-09-02 | Booster | 8 | OOM at 256 | – | |
"""
    of_booster = replace(DEFAULTS, machine="booster")
    (figure,) = read(text, of_booster)
    assert (figure.samples_per_s, figure.runs) == (1564, 3)
    assert figure.nights == {"2026-09-01": 1561, "2026-09-02": 1570}
    last, first = nights(text, of_booster)
    assert (f"{last.began_at:%Y-%m-%d}", last.system) == ("2026-09-02", "booster")
    assert [value.value for value in first.values] == [1560, 1562]
    left = ["the rows of 'ARC4' (1)", "line 7", "column 'Time/epoch'", "column 'Speedup'"]
    assert [each.split(":")[0] for each in last.without_value] == left
    for machine in ("JUWELS", None):
        other = Defaults(case="c", strategy="ddp", machine=machine)
        named, batch = sorted(refusals(text, other), key=lambda each: "no batch" in each)
        assert "are of 'Booster', 'booster', 'ARC4'; choose one with --system, or with" in named
        assert "no batch" in batch


def test_all_problems_are_reported_once(tmp_path: Path) -> None:
    table, output = tmp_path / "wiki.csv", tmp_path / "wiki.json"
    table.write_text("n,img/s,colour\nx,390,red\n2,abc,red\n4,9,red,1\n8,OOM,red\n1,390,red\n")
    asked = ["baseline", "import", table, "-o", output, "--cluster", "ours"]
    asked += ["--source", "our wiki", "--case", "resnet50", "--strategy", "ddp"]
    batch = ("--batch-per-gpu", "256")
    answer = gpuscale(*asked)
    assert (answer.returncode, answer.stdout) == (2, "")
    head, *rows = answer.stderr.splitlines()
    assert head.endswith("wiki.csv: 5 problems:")
    assert [row.split(":")[0] for row in rows] == [f"  line {n}" for n in (1, 2, 2, 3, 4)]
    assert "no batch" in answer.stderr
    assert "(also line 3, 6)" in answer.stderr
    assert not output.exists()
    table.write_text("n,img/s\n1,390\n1,392\n2,nan\n")
    assert "line 4" in gpuscale(*asked, *batch).stdout
    (figure,) = read_baseline(output).published
    assert (figure.samples_per_s, figure.runs) == (391, 2)
    asked[4] = tmp_path / "nodes.json"
    table.write_text("n,img/s,nodes\n8,390,1\n")
    refused = command_line.refusal(*asked, *batch, "--gpus-per-node", "4")
    assert "8 GPUs do not fit on 1 node of 4" in refused
    twice = (*asked[:2], "table", table, *asked[2:])
    assert "give a single table" in command_line.refusal(*twice)
    table.write_text("n,img/s\n" + "1,390\n" * 20)
    assert command_line.refusal(*asked[:-4])


OF_A_CENTRE = """| Benchmark | Framework | Cluster | GPUs | Date | Img/sec |
|---|---|---|---|---|---|
| DDP, made data | Torch 1.9+cu1 | north | 1 | 2031-05-18 | 700.5 |
| DDP, made data | Torch 1.9+cu1 | north | 4 | 2031-05-18 | 2700.25 |
| DDP, made data | Torch 1.9+cu1 | south | 1 | 2031-05-18 | 300.5 |
| Other, files | Torch 1.9+cu1 | south | 8 | 2031-05-18 | ERROR |
| DDP, made data | Torch 2.0+cu2 | south | 1 | 2032-05-08 | 330.5 |
"""
OPTION = r"--column ('[^']*'|[^' ]+)"


def test_column_option_from_the_message(tmp_path: Path) -> None:
    table = tmp_path / "results.md"
    table.write_text(OF_A_CENTRE.replace("Framework", "Soft ware = $it"))
    asked = ["baseline", "import", table, "--cluster", "South", "--source", "the centre"]
    asked += ["--strategy", "ddp", "--batch-per-gpu", "32", "-o"]
    line = command_line.refusal(*asked, tmp_path / "none.json")
    named, skipped = (shlex.split(f"--column {text}")[:2] for text in re.findall(OPTION, line))
    assert gpuscale(*asked, tmp_path / "named.json", *named).returncode == 0
    found = read_baseline(tmp_path / "named.json").published
    cases = {"DDP, made data, Torch 1.9+cu1": 300.5, "DDP, made data, Torch 2.0+cu2": 330.5}
    assert {each.case: each.samples_per_s for each in found} == cases
    said = gpuscale(*asked, tmp_path / "skipped.json", *skipped).stdout
    (figure,) = read_baseline(tmp_path / "skipped.json").published
    assert (figure.case, figure.runs, len(figure.nights)) == ("DDP, made data", 2, 2)
    assert "note: left out column 'Soft ware = $it'\n" in said


def test_a_column_may_be_said_to_be_one_that_is_known() -> None:
    columns = {"Karten": "gpus", "Bilder je Sekunde": "images/s", "Aufbau": "name"}
    defaults = Defaults(strategy="ddp", batch_per_gpu=64, columns=columns)
    one, two = read("Aufbau;Karten;Bilder je Sekunde\nA 1.5;1;360\nB;2;700\n", defaults)
    assert [(one.case, one.samples_per_s), (two.case, two.gpus)] == [("A 1.5", 360), ("B", 2)]
    text = "Aufbau;Karten;images/s\nA;1;x\n"
    assert "no column of GPUs" in refusals(text)[2]
    assert "found text 'x'" in refusals(text)[3]
    told = refusals(text, Defaults(columns={"Aufbau": "colour", "Bau": "name"}))
    assert "'colour' is neither name, nor skip, nor a known header" in told[0]
    assert "--column: no column is 'Bau'; there are 'Aufbau', 'Karten'" in told[2]
