"""Tables that people keep by hand: what is read, and how a wrong cell is named."""

import re
from pathlib import Path

import pytest

from gpuscale.errors import DecodeError
from gpuscale.records import Hardware, PublishedFigure
from gpuscale.store.table import HEADERS, TableDefaults, column_of, figures_from_table

PAGE = Path(__file__).parent.parent / "docs" / "baselines.md"
NODE = Hardware(device="cuda", gpu_name="A100", gpus_per_node=4)
DEFAULTS = TableDefaults(case="resnet50", strategy="ddp", batch_per_gpu=256, timed="job")


def read(
    text: str, defaults: TableDefaults = DEFAULTS, hardware: Hardware = NODE
) -> tuple[PublishedFigure, ...]:
    return figures_from_table(text, defaults, hardware)[0]


def refusal(text: str, defaults: TableDefaults = DEFAULTS) -> str:
    with pytest.raises(DecodeError) as caught:
        read(text, defaults)
    message = str(caught.value)
    assert message.isprintable()
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
        ("84.5", 84.5),
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
        ("time_s", 3),
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
    figures, left_out = figures_from_table(table, DEFAULTS, NODE)
    assert len(figures) == 2
    assert left_out == ("Speedup", "E(n)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n,time\n1,145\n2,84;x\n", "line 3: column 'time': expected a time such as 145, 2:25 or"),
        ("n,time\n1,\n", "line 2: neither a time nor a throughput; fill its cell"),
        ("n,time\n1,0\n", "line 2: column 'time': expected a number from 1e-09, found 0"),
        ("n,time\n0,145\n", "line 2: column 'n': expected a whole number from 1, found 0"),
        ("n,time\n2.0,145\n", "line 2: column 'n': expected a whole number, found text '2.0'"),
        ("n,time\n,145\n", "line 2: no number of GPUs; fill its cell"),
        ("n,time\n1,145,7\n", "line 2: 3 cells under 2 headers (line 1); give each header its"),
        ('n,time\n1,"145\n', "line 2: this is no line of a table: unexpected end of data"),
        ("n,time,colour\n1,145,red\n", "line 1: column 'colour': not a column that is known"),
        ("n,time,runtime\n1,145,145\n", "line 1: column 'runtime': means the same as 'time'"),
        ("n,time,img/s\n1,145,3\n", "line 1: expected one column of times or of throughput, found"),
        ("n,nodes\n1,1\n", "line 1: expected one column of times or of throughput, found none"),
        ("n,time (parsec)\n1,1\n", "line 1: column 'time (parsec)': the unit text 'parsec' is not"),
        ("n,throughput (tokens/s)\n1,1\n", "line 1: column 'throughput (tokens/s)': the unit"),
        ("n,img/s\n1,3\n1,4\n", "line 3: resnet50/ddp on 1 GPU stands twice; give one row"),
        ("n,img/s\n1,2 650\n", "line 2: column 'img/s': expected a number such as 1520.5, found"),
        ("n,time,nodes\n2,9,1\n2,8,2\n", "line 3: resnet50/ddp on 2 GPUs stood before with anoth"),
        ("n,time,nodes\n8,9,1\n", "line 2: 8 GPUs are not on 1 node of 4 GPUs; correct one of"),
        ("n,time,global batch\n3,9,256\n", "line 2: a global batch of 256 does not go evenly on 3"),
        ("n,time\n", "line 1: the table has no rows"),
        ("time\n1\n", "no table has a column 'gpus' (or 'n'); docs/baselines.md shows one"),
        ("", "no table has a column 'gpus'"),
        ("|n|time|\n|-|-|\n|1|2|\n\n|n|time|\n|-|-|\n|1|2|\n", "several tables have a column of"),
        ("n,time\n1,\x1b[2J\n", "line 2: text with the unprintable character \\x1b; remove it"),
    ],
)
def test_what_cannot_be_read_is_named_by_line_and_column(text: str, message: str) -> None:
    assert refusal(text).startswith(message)


def test_what_neither_table_nor_options_say_is_asked_for() -> None:
    bare = TableDefaults(timed="job")
    text = "n,time,case,strategy,batch\n1,9,,,\n"
    assert refusal(text, bare) == "line 2: no case; fill its cell, or give --case"
    assert "no strategy" in refusal("n,time,case\n1,9,a\n", bare)
    assert "no batch" in refusal("n,time,case,strategy\n1,9,a,ddp\n", bare)
    assert "say with --timed" in refusal("n,time\n1,9\n", TableDefaults())
    short = TableDefaults(case="a", strategy="ddp", batch_per_gpu=1, timed="epoch", discard_first=1)
    assert "has 1 time, and --discard-first takes 1" in refusal("n,time\n1,9\n", short)


def test_every_header_that_is_known_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for meaning, names in HEADERS.items():
        for name in names:
            column = column_of(name.upper())
            assert column is not None
            assert column.meaning == meaning
            assert re.search(rf"`{re.escape(name)}`", page), name


def test_a_header_of_any_length_is_refused_at_once() -> None:
    assert column_of(" (" * 4000) is None
    assert column_of("time " * 2000) is None
