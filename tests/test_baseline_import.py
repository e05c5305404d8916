"""Tables that people keep by hand: what is read, and how a wrong cell is named."""

import re
import shlex
from pathlib import Path

import pytest

from gpuscale.cli import main
from gpuscale.records import Hardware, PublishedFigure
from gpuscale.store import read_baseline
from gpuscale.store.table import TableDefaults, figures_from_table
from gpuscale.store.table.columns import HEADERS, parse_header

PAGE = Path(__file__).parent.parent / "docs" / "baselines.md"
NODE = Hardware(device="cuda", gpu_name="A100", gpus_per_node=4)
DEFAULTS = TableDefaults(case="resnet50", strategy="ddp", batch_per_gpu=256, timed="job")


def read(
    text: str, defaults: TableDefaults = DEFAULTS, hardware: Hardware = NODE
) -> tuple[PublishedFigure, ...]:
    table = figures_from_table(text, defaults, hardware)
    assert not table.problems
    return table.figures


def refusals(text: str, defaults: TableDefaults = DEFAULTS) -> list[str]:
    messages = [str(each) for each in figures_from_table(text, defaults, NODE).problems]
    assert all(message.isprintable() for message in messages)
    return messages


def refusal(text: str, defaults: TableDefaults = DEFAULTS) -> str:
    (message,) = refusals(text, defaults)
    return message


def test_a_markdown_table_within_other_text_is_read() -> None:
    text = """# Scaling

| what | who |
|------|-----|
| us   | you |

| GPUs | Wall clock (min) | batch/GPU | note    |
|-----:|:----------------:|-----------|---------|
| 1    | 342.5            | 256       |         |
| **16** | 24:48.169      | `128`     | a \\| b |

| GPU | 3 |
"""
    one, many = read(text)
    assert (one.gpus, one.nodes, one.batch_per_gpu, one.note) == (1, 1, 256, None)
    assert one.times_s == (342.5 * 60,)
    assert (many.gpus, many.nodes, many.batch_per_gpu, many.note) == (16, 4, 128, "a | b")
    assert many.times_s == pytest.approx((24 * 60 + 48.169,))
    assert (many.case, many.strategy, many.timed, many.runs) == ("resnet50", "ddp", "job", 1)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_is_read_whatever_separates_it(delimiter: str) -> None:
    rows = [["case", "n", "images/s", "global batch"], ["a", "1", "360", "256"]]
    rows += [["b", "8", "2650.5", "1024"]]
    text = "\ufeff# kept by hand\n\n" + "\r\n".join(delimiter.join(row) for row in rows)
    one, many = read(text)
    assert (one.case, one.samples_per_s, one.batch_per_gpu, one.timed) == ("a", 360, 256, None)
    assert (many.case, many.samples_per_s, many.batch_per_gpu) == ("b", 2650.5, 128)
    assert many.nodes == 2


@pytest.mark.parametrize(
    ("cell", "seconds"),
    [
        ("145", 145),
        ("1.45e2", 145),
        ("2:25", 145),
        ("5:42:11.864", 5 * 3600 + 42 * 60 + 11.864),
        ("342 m 11.864 s", 342 * 60 + 11.864),
        ("2min25s", 145),
        ("1 h 2 minutes", 3720),
        ("412 ms", 0.412),
    ],
)
def test_times_are_read_as_people_write_them(cell: str, seconds: float) -> None:
    (figure,) = read(f"n,time (s)\n1,{cell}\n")
    assert figure.times_s == pytest.approx((seconds,))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("time", 3),
        ("Time [ms]", 0.003),
        ("hours", 10800),
        ("run time (in min)", 180),
    ],
)
def test_the_unit_of_plain_times_is_that_of_the_header(header: str, seconds: float) -> None:
    (figure,) = read(f"gpus;{header}\n1;3\n")
    assert figure.times_s == pytest.approx((seconds,))


def test_several_times_are_repetitions_in_a_cell_or_in_rows() -> None:
    epochs = TableDefaults(
        case="c", strategy="ddp", batch_per_gpu=256, timed="epoch", discard_first=1
    )
    text = "| n | epoch time |\n|---|---|\n| 1 | 49, 45, 45 |\n| 2 | 26; 24 |\n| 2 | 24 |\n"
    one, two = read(text, epochs)
    assert (one.times_s, one.discard_first, one.runs) == ((49, 45, 45), 1, 1)
    assert (two.times_s, two.mean_time_s) == ((26, 24, 24), 24)
    (jobs,) = read("n,time\n1,145\n1,147\n")
    assert (jobs.times_s, jobs.runs) == ((145, 147), 2)
    (counted,) = read("n,time,runs\n1,145,5\n")
    assert counted.runs == 5


def test_columns_that_follow_from_the_others_are_left_out_and_named() -> None:
    table = "n,time,Speedup,E(n)\n1,145,1,1\n2,84.5,1.72,0.86\n"
    found = figures_from_table(table, DEFAULTS, NODE)
    assert len(found.figures) == 2
    assert [re.findall("'(.*?)'", each) for each in found.left_out] == [["Speedup"], ["E(n)"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n,time\n1,145\n2,84;x\n", "line 3: column 'time': expected a time such as 145, 2:25 or"),
        ("n,time\n1,\n", "line 2: neither a time nor a throughput; fill its cell"),
        ("n,time\n1,0\n", "line 2: column 'time': expected a number from 1e-09, found 0"),
        ("n,time\n2.0,145\n", "line 2: column 'n': expected a whole number, found text '2.0'"),
        ("n,time\n1,145,7\n", "line 2: 3 cells under 2 headers (line 1); give each header its"),
        ('n,time\n1,"145\n', "line 2: this is no line of a table: unexpected end of data"),
        ("n,time,colour\n1,145,red\n", "line 1: column 'colour': not known; make it part of the"),
        ("n,time,runtime\n1,145,145\n", "line 1: column 'runtime': means the same as 'time'"),
        ("n,nodes\n1,1\n", "line 1: expected a column of times or of throughput, found none"),
        (
            "n,time/epoch\n1,9\n",
            "line 1: column 'time/epoch': gives times of an epoch, and --timed",
        ),
        ("n,time (parsec)\n1,1\n", "line 1: column 'time (parsec)': the unit text 'parsec' is not"),
        ("n;img/s\n1;1,563\n", "line 2: column 'img/s': '1,563' may be 1563 or 1.563; write which"),
        ("n,img/s\n1,390 402\n", "line 2: column 'img/s': '390 402' may be one number or several"),
        ("n,img/s,date\n1,3,\n", "line 2: no date; fill its cell, or remove the column"),
        ("n,img/s,day\n1,3,09/01/2026\n", "line 2: column 'day': expected a date such as 2026-09"),
        ("n,time,nodes\n2,9,1\n2,8,2\n", "line 3: resnet50/ddp on 2 GPUs has another batch or"),
        ("n,time,nodes\n8,9,1\n", "line 2: 8 GPUs are not on 1 node of 4 GPUs; correct one of"),
        ("n,time,global batch\n3,9,256\n", "line 2: a global batch of 256 does not go evenly on 3"),
        (
            "time\n1\n",
            "line 1: no table has a column 'gpus' (or 'n'); name one with --column HEADER=gpus",
        ),
        (
            "|n|time|\n|-|-|\n|1|2|\n\n|n|time|\n|-|-|\n|1|2|\n",
            "line 1: several tables have a column of",
        ),
        ("n,time\n1,\x1b[2J\n", "line 2: text with the unprintable character \\x1b; remove it"),
    ],
)
def test_what_cannot_be_read_is_named_by_line_and_column(text: str, message: str) -> None:
    assert refusals(text)[0].startswith(message)


def test_what_neither_table_nor_options_say_is_asked_for() -> None:
    bare = TableDefaults(timed="job")
    text = "n,time,case,strategy,batch\n1,9,,,\n"
    every = "no case and no strategy and no batch; fill their cells, or give --case and --strategy"
    assert refusal(text, bare) == f"line 2: {every} and --batch-per-gpu"
    assert "no strategy" in refusal("n,time,case\n1,9,a\n", bare)
    assert "no batch" in refusal("n,time,case,strategy\n1,9,a,ddp\n", bare)
    span, rest = refusals("n,time\n1,9\n", TableDefaults())
    assert "say with --timed" in span
    assert "no case" in rest
    short = TableDefaults(case="a", strategy="ddp", batch_per_gpu=1, timed="epoch", discard_first=1)
    assert "has 1 time, and --discard-first takes 1" in refusal("n,time\n1,9\n", short)


def test_every_header_that_is_known_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for meaning, names in HEADERS.items():
        for name in names:
            column = parse_header(name.upper())
            assert column is not None
            assert column.meaning == meaning
            assert re.search(rf"`{re.escape(name)}`", page), name


def test_a_header_of_any_length_is_refused_at_once() -> None:
    assert parse_header(" (" * 4000) is None
    assert parse_header("time " * 2000) is None


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        # What other cells show.
        (("1,563", "980.5"), (1563, 980.5)),
        (("1.563,0", "980"), (1563, 980)),
        (("1 563,5", "980"), (1563.5, 980)),
        (("1,563,000", "1,563"), (1563000, 1563)),
        # What the machine can do.
        (("398", "1,563"), (398, 1563)),
        (("0,398", "1,563"), (0.398, 1.563)),
        (("1.398", "1.563"), (1.398, 1.563)),
        # Units in the cell.
        (("398 img/s", "93,780 images/min"), (398, 1563)),
    ],
)
def test_numbers_may_be_in_any_style(cells: tuple[str, str], expected: tuple[float, float]) -> None:
    one, four = read(f"n;img/s\n1;{cells[0]}\n4;{cells[1]}\n")
    assert (one.samples_per_s, four.samples_per_s) == pytest.approx(expected)


def test_a_speedup_shows_how_the_table_writes_decimals_and_whole_numbers_have_none() -> None:
    (german,) = read("n;img/s;Speedup\n4;1,563;3,9\n")
    (english,) = read("n;img/s;Speedup\n4;1,563;3.9\n")
    assert (german.samples_per_s, english.samples_per_s) == (1.563, 1563)
    (figure,) = read("n;img/s;global batch\n4;398;1,024\n")
    assert figure.batch_per_gpu == 256
    for written in ("24 m 48.169 s", "24 m 48,169 s", "24:48,169"):
        (figure,) = read(f"n;time;Speedup\n4;{written};3,9\n")
        assert figure.times_s == pytest.approx((1488.169,))
    both = "n;img/s;time\n1;1,563;1.5\n1;1,563;1,5\n"
    assert len(refusals(both)) == 2


@pytest.mark.parametrize(
    ("header", "cell", "samples_per_s"),
    [
        ("Throughput (img/s)", "1563", 1563),
        ("Throughput, images/min", "93780", 1563),
        ("img/s/GPU", "390.75", 1563),
        ("Throughput per GPU (img/s)", "390.75", 1563),
        ("ms/step", "500", 2048),
        ("it/s", "2", 2048),
        ("Iterations per sec", "2", 2048),
    ],
)
def test_any_kind_of_throughput_is_read(header: str, cell: str, samples_per_s: float) -> None:
    (figure,) = read(f"Num GPUs;{header};Batch size (per GPU)\n4;{cell};256\n")
    assert figure.samples_per_s == pytest.approx(samples_per_s)
    assert figure.batch_per_gpu == 256
    assert figure.timed is None


@pytest.mark.parametrize(
    "header", ["Time/epoch (s)", "Epoch time [s]", "s/epoch", "Time (s/epoch)"]
)
def test_a_header_that_names_an_epoch_says_what_its_times_span(header: str) -> None:
    defaults = TableDefaults(case="c", strategy="DDP", batch_per_gpu=256)
    (figure,) = read(f"# of GPUs,{header}\n4,84.5\n", defaults)
    assert (figure.times_s, figure.timed, figure.strategy) == ((84.5,), "epoch", "ddp")


def test_dates_make_nights_and_a_column_of_machines_is_chosen_from() -> None:
    text = """| Date | Machine | GPUs | img/s | Time/epoch |
|---|---|---|---|---|
| 2026-09-02 | Booster | 4 | 1570 | 820 |
| 1.9.2026 | booster | 4 | 1560 | 821 |
| 1 Sep 2026 | Booster | 4 | 1562 | 822 |
| 2026-09-01 | ARC4 | 4 | – | – |
| 2026-09-02 | Booster | 8 | OOM at 256 | – |
"""
    defaults = TableDefaults(case="c", strategy="ddp", batch_per_gpu=256, cluster="booster")
    found = figures_from_table(text, defaults, NODE)
    (figure,) = found.figures
    assert not found.problems
    assert (figure.samples_per_s, figure.runs) == (1564, 3)
    assert figure.nights == {"2026-09-01": 1561, "2026-09-02": 1570}
    assert [each.split(":")[0] for each in found.left_out] == [
        "the rows of 'ARC4' (1)",
        "line 7",
        "column 'Time/epoch'",
    ]
    other = TableDefaults(case="c", strategy="ddp", batch_per_gpu=256, cluster="JUWELS")
    assert "choose one of 'Booster', 'booster', 'ARC4' with --cluster" in refusal(text, other)


def test_the_first_epochs_of_each_night_are_left_out() -> None:
    text = "n,epoch time,date\n1,49,2026-09-01\n1,45,2026-09-01\n1,50; 47,2026-09-02\n"
    epochs = TableDefaults(case="c", strategy="ddp", batch_per_gpu=256, discard_first=1)
    (figure,) = read(text, epochs)
    assert (figure.times_s, figure.discard_first) == ((49, 50, 45, 47), 2)
    assert figure.nights == {"2026-09-01": 45, "2026-09-02": 47}


def test_all_problems_are_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, output = tmp_path / "wiki.csv", tmp_path / "wiki.json"
    table.write_text("n,img/s,colour\nx,390,red\n2,abc,red\n4,9,red,1\n8,OOM,red\n1,390,red\n")
    asked = ["baseline", "import", str(table), "-o", str(output), "--cluster", "ours"]
    asked += ["--source", "our wiki", "--case", "resnet50", "--strategy", "ddp"]
    assert main(asked) == 2
    out, err = capsys.readouterr()
    assert not out
    assert [line.split(":")[2] for line in err.splitlines()] == ["1", "2", "2", "3", "4"]
    assert "no batch" in err
    assert "(lines 3, 6 too)" in err
    assert not output.exists()
    table.write_text("n,img/s\n1,390\n1,392\n2,nan\n")
    assert main([*asked, "--batch-per-gpu", "256"]) == 0
    assert "line 4" in capsys.readouterr().out
    (figure,) = read_baseline(output).published
    assert (figure.samples_per_s, figure.runs) == (391, 2)
    table.write_text("n,img/s\n" + "1,390\n" * 20)
    assert main([*asked[:-4], "-o", str(tmp_path / "b.json")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


OF_A_CENTRE = """| Benchmark | Framework | Cluster | GPUs | Date | Img/sec |
|---|---|---|---|---|---|
| DDP, made data | Torch 1.9+cu1 | north | 1 | 2031-05-18 | 700.5 |
| DDP, made data | Torch 1.9+cu1 | north | 4 | 2031-05-18 | 2700.25 |
| DDP, made data | Torch 1.9+cu1 | south | 1 | 2031-05-18 | 300.5 |
| Other, files | Torch 1.9+cu1 | south | 8 | 2031-05-18 | ERROR |
| DDP, made data | Torch 2.0+cu2 | south | 1 | 2032-05-08 | 330.5 |
"""
OPTION = r"--column ('[^']*'|[^' ]+)"


def test_column_option_from_the_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "results.md"
    table.write_text(OF_A_CENTRE.replace("Framework", "Soft ware = $it"))
    asked = ["baseline", "import", str(table), "--cluster", "South", "--source", "the centre"]
    asked += ["--strategy", "ddp", "--batch-per-gpu", "32"]
    assert main([*asked, "-o", str(tmp_path / "none.json")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    named, skipped = (shlex.split(f"--column {text}")[:2] for text in re.findall(OPTION, line))
    assert main([*asked, *named, "-o", str(tmp_path / "named.json")]) == 0
    found = read_baseline(tmp_path / "named.json").published
    assert [(each.case, each.samples_per_s) for each in found] == [
        ("DDP, made data, Torch 1.9+cu1", 300.5),
        ("DDP, made data, Torch 2.0+cu2", 330.5),
    ]
    assert main([*asked, *skipped, "-o", str(tmp_path / "skipped.json")]) == 0
    (figure,) = read_baseline(tmp_path / "skipped.json").published
    assert (figure.case, figure.runs, len(figure.nights)) == ("DDP, made data", 2, 2)
    assert (
        "left out column 'Soft ware = $it': as --column asks; rows that differ in nothing"
        in capsys.readouterr().out
    )


def test_a_column_may_be_said_to_be_one_that_is_known() -> None:
    columns = {"Karten": "gpus", "Bilder je Sekunde": "images/s", "Aufbau": "name"}
    defaults = TableDefaults(strategy="ddp", batch_per_gpu=64, columns=columns)
    one, two = read("Aufbau;Karten;Bilder je Sekunde\nA 1.5;1;360\nB;2;700\n", defaults)
    assert [(one.case, one.samples_per_s), (two.case, two.gpus)] == [("A 1.5", 360), ("B", 2)]
    bad = "n,images/s,global batch,case\n2,360,x,a\ny,360,64,a\n"
    told = refusals(bad, TableDefaults())
    assert ["found text 'x'" in told[0], "no strategy;" in told[1]] == [True, True]
    assert ["found text 'y'" in told[2], "no strategy;" in told[3], len(told)] == [True, True, 4]
    told = refusals("Aufbau;Karten;images/s\nA;1;360\n")
    assert len(told) == 3
    assert "name one with --column HEADER=gpus" in told[0]
