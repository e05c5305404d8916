"""The options of the command line are checked before anything starts."""

import re
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measuring import REPOSITORY, TINY_CASE, Session, run_pytest, write_case

from gpuscale.base.errors import UsageError
from gpuscale.plugin.options import OPTIONS, parse_options
from gpuscale.records.configuration import Precision
from gpuscale.records.request import MOST_WINDOWS, TIMING_PLANS, timing_plan

GIVEN: dict[str, object] = {"gpus": "1,2"}
PAGE = REPOSITORY / "docs" / "options.md"
ON_CPU = ("--gpus", "1", "--device", "cpu")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gpus": "0"}, "--gpus: '0' is not a whole number from 1"),
        ({"gpus": "1,1"}, "--gpus: 1,1 has a number twice"),
        ({"gpus": "1-2"}, "--gpus: '1-2' is not a whole number from 1"),
        ({"gpus": "two"}, "--gpus: 'two' is not a whole number"),
        ({"gpus": ""}, "--gpus: '' is not a whole number"),
        ({"gpus": "9" * 5000}, "is not a whole number"),
        ({"gpus": "999999999"}, "is not a whole number from 1 to 100000"),
        ({"runs": "2:8"}, "--runs: '2' is not a whole number from 3"),
        ({"runs": "8:3"}, "--runs: 8:3 has its maximum first; write 3:8"),
        ({"runs": "3:8:9"}, "--runs: '8:9' is not a whole number"),
        ({"runs": "3:8"}, "--runs 3:8 needs a --baseline to end early; add one, or write 8"),
        ({"baseline": "b.json", "runs": "9:9"}, "confirm a loss; write --runs 3:9, or leave"),
        ({"strategy": "zero"}, "--strategy: there is no 'zero'; choose from dp, ddp"),
        ({"strategy": "lightnig"}, "--strategy: there is no 'lightnig' (did you mean 'lightning'"),
        ({"launcher": "torchrun"}, "--launcher: there is no 'torchrun'; choose from local, slurm"),
        ({"timeout": "-3"}, "--timeout: '-3' is not a number of seconds above 0"),
        ({"run_seconds": "900"}, "no run ends within its --timeout of 600 s; add --timeout 1800"),
        ({"data": "loader", "data_root": "/"}, "name two sources of data; leave out one"),
        ({"data_workers": "2"}, "nothing is loaded; add --data loader"),
        ({"download": True}, "add --data-root DIR"),
        ({"data_root": "/no/such/folder"}, "--data-root: /no/such/folder is not a folder"),
        ({"results": str(PAGE)}, "exists already"),
        ({"results": "/no/night.json"}, "which a folder's results are found; name it night.jsonl"),
        ({"results": "a.jsonl", "resume": "b.jsonl"}, "leave out one"),
        ({"inject": ["data=5"]}, "try one of data=5ms"),
    ],
)
def test_a_meaningless_value_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_options(GIVEN | given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_given_is_read_and_what_is_not_has_its_default() -> None:
    asked = parse_options({"gpus": "4, 1,2", "strategy": "ddp,ddp", "inject": ["hang=1@50"]})
    assert (asked.gpus, asked.strategies, asked.injections) == ((1, 2, 4), ("ddp",), ("hang=1@50",))
    assert (asked.threads_per_rank, asked.compiled, asked.results) == (1, False, None)
    with pytest.raises(AttributeError):
        # mypy refuses it as well.
        asked.gpus = (1,)  # type: ignore[misc]


def test_every_number_format_that_is_recorded_can_be_asked_for() -> None:
    for name in get_args(Precision):
        assert parse_options(GIVEN | {"precision": name}).precision == name


@pytest.mark.parametrize("value", [None, 0, 0.0])
def test_no_timeout_of_another_plugin_is_still_a_timeout_here(value: object) -> None:
    assert parse_options(GIVEN | {"timeout": value}).timeout_s == 600
    assert parse_options(GIVEN | {"timeout": 30.0}).timeout_s == 30


def test_the_page_has_what_the_options_say_of_themselves() -> None:
    rows = re.findall(r"^\| `(--\S+)( \S+)?` \| .+ \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    found = [(flag, metavar.strip(), default.replace("`", "")) for flag, metavar, default in rows]
    known = [(each.flag, each.metavar, each.default_text) for each in OPTIONS.values()]
    assert found == known


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_default_of_run_seconds_does_what_leaving_it_out_does(device: str) -> None:
    plan = TIMING_PLANS[device]
    assert timing_plan(device, None) == plan
    assert timing_plan(device, plan.run_seconds) == plan
    text = OPTIONS["run_seconds"].default_text
    unit = {"cuda": "GPUs", "cpu": "CPU ranks"}[device]
    assert f"{plan.run_seconds:g} on {unit}" in text


@given(st.floats(0.01, 500), st.floats(0.01, 500))
def test_more_seconds_never_give_fewer_or_shorter_windows(one: float, other: float) -> None:
    less, more = (timing_plan("cpu", seconds) for seconds in sorted((one, other)))
    assert less.windows <= more.windows <= MOST_WINDOWS
    assert less.window_s <= more.window_s
    # More of them first, since they tell whether a run is steady.
    assert more.windows == MOST_WINDOWS or more.window_s == TIMING_PLANS["cpu"].window_s
    # Of four windows, three are synchronised and counted in the plan.
    longest_s, usual_s = (
        plan.windows * plan.window_s * 4 / 3 for plan in (more, TIMING_PLANS["cpu"])
    )
    assert longest_s <= max(more.run_seconds, usual_s) * 1.001


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "1", "--device", "cuda"], "; see 'nvidia-smi' and CUDA_VISIBLE_DEVICES there"),
        (["--gpus", "1", "--device", "rocm"], "; see 'rocminfo' and HIP_VISIBLE_DEVICES there"),
        ([*ON_CPU, "--baseline", "nowhere.json"], "nowhere.json"),
    ],
)
def test_usage_errors_come_first(tmp_path: Path, arguments: list[str], message: str) -> None:
    write_case(tmp_path, "Case = Tiny")
    session = run_pytest(tmp_path, *arguments, CUDA_VISIBLE_DEVICES="").ended(4)
    assert message in session.output
    assert "Traceback" not in session.output
    assert not (tmp_path / ".gpuscale").exists()


FORGOTTEN = "@pytest.mark.gpuscale(case=Case)\ndef test_forgotten():\n    pass\n"


@pytest.mark.parametrize(
    ("cases", "arguments", "message"),
    [
        (["class Case(Tiny):\n    pass"] * 2, [], "::Case; rename one"),
        ([f"Case = Tiny\n\n{FORGOTTEN}"], [], "test_forgotten has a gpuscale mark but measures"),
        (
            ['class Case(Tiny):\n    sizes = {"big": Size(batch=4, sample_shape=(16,))}'],
            ["--size", "huge"],
            "case has no size 'huge'; it has big",
        ),
        (
            ['class Case(Tiny):\n    strategies = ("dp", "ddp")'],
            ["--strategy", "dp", "--gpus", "1,2", "--inject", "slow-rank=1:1.2"],
            "'slow-rank=1:1.2' would never happen: no item that was chosen has a rank 1",
        ),
    ],
    ids=["namesakes", "no scaling", "unknown size", "a rank that dp does not have"],
)
def test_items_that_cannot_be_measured_together_are_refused_before_any_is(
    tmp_path: Path, cases: list[str], arguments: list[str], message: str
) -> None:
    for number, case in enumerate(cases):
        write_case(tmp_path, "from gpuscale import Size", case, name=f"test_{number}.py")
    session = run_pytest(tmp_path, *ON_CPU, *arguments).ended(4)
    assert message in session.output


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("broken")
    for name, mark in (("no_case", ""), ("no_class", "@pytest.mark.gpuscale(case=42)\n")):
        text = f"import pytest\n\n{mark}def test_forgotten(scaling):\n    scaling()\n"
        (folder / f"test_{name}.py").write_text(text)
    for name, line in (
        ("word", 'strategies = "ddp"'),
        ("unknown", 'strategies = ("best",)'),
        ("mode", 'scaling = "stong"'),
        ("shape", "sample_shape = (16, None)"),
        ("option", 'strategy_options = {"ddp": {"bucket_mb": 1}}'),
        ("refused", 'strategy_options = {"dp": {"static_graph": True}}'),
        ("unread", 'scalling = "strong"'),
        ("misnamed", "batch_size = 999"),
        ("misspelt", "def optimiser(self, model, gpus): pass"),
        ("unset", "batch = 0"),
        ("named", 'name = "mine"'),
    ):
        write_case(folder, f"class Case(Tiny):\n    {line}", name=f"test_{name}.py")
    for name, marked in (("keyword", "case=Tiny, gpus=3"), ("positional", "Tiny")):
        path = write_case(folder, "Case = Tiny", name=f"test_{name}.py")
        path.write_text(path.read_text().replace("case=Case", marked))
    command = "from gpuscale import CommandCase\nclass Case(CommandCase):"
    write_case(folder, f"{command} command, launches = 'true', 'once'", name="test_command.py")
    typo = "from gpuscale import TraningCase\n"
    (folder / "test_typo.py").write_text(typo)
    (folder / "test_typo_behind_a_dot.py").write_text("import gpuscale as g\ng.TraningCase\n")
    forgetful = "class Forgetful(TrainingCase):\n    sample_shape, batch = (16,), 8\n"
    write_case(folder, forgetful, "Case = Forgetful", name="test_forgetful.py")
    return run_pytest(folder, *ON_CPU)


@pytest.mark.parametrize(
    "message",
    [
        "test_no_case.py::test_forgotten uses 'scaling' but has no @pytest.mark.gpuscale",
        "test_no_class.py::test_forgotten: the gpuscale mark takes a TrainingCase class",
        "Case.strategies is 'ddp'; it takes a tuple of dp, ddp",
        "Case.strategies is ('best',); it takes a tuple of dp, ddp",
        "Case.scaling is 'stong'; it is one of weak, strong",
        "Case.sample_shape is None; it takes whole numbers of at least 1",
        "test_keyword.py::test_case: the gpuscale mark takes a TrainingCase class or a CommandCase",
        f"\ntest_positional.py:{TINY_CASE.count(chr(10)) + 4}: the gpuscale mark takes case=: @py",
        "Case.strategy_options['ddp']: there is no option 'bucket_mb'; it has bucket_cap_mb",
        "gpuscale does not read Case.scalling (did you mean 'scaling'?); correct its name, or",
        "gpuscale does not read Case.batch_size (did you mean 'batch'?)",
        "gpuscale does not read Case.optimiser (did you mean 'optimizer'?)",
        "gpuscale does not read Case.launches (did you mean 'launch'?)",
        "Case.batch must be set",
        "Case.name is 'mine'; it must be a method",
        "Case.strategy_options['dp']: there is no option 'static_graph'; dp has no options",
        "\ntest_typo.py:1: in gpuscale there is no 'TraningCase' (did you mean 'TrainingCase'?)",
        "\ntest_typo_behind_a_dot.py:2: in gpuscale there is no 'TraningCase' (did you mean",
        f"test_forgetful.py:{TINY_CASE.count(chr(10)) + 2}: Forgetful.model() must be implemented",
    ],
)
def test_what_cannot_become_an_item_is_an_error(broken: Session, message: str) -> None:
    assert broken.exit_code == 2, broken.output
    assert message in broken.output


@pytest.mark.parametrize("file", ["typo", "positional"])
def test_a_misuse_of_gpuscale_needs_no_traceback(broken: Session, file: str) -> None:
    shown = broken.output.split(f"ERROR collecting test_{file}.py")[1]
    assert shown.splitlines()[2].startswith("_____"), shown


def test_attributes_of_ones_own_are_used_in_a_case(tmp_path: Path) -> None:
    own = """
class Case(Tiny):
    batch_size, samples, colour, _scalling = 8, 1, "red", 0
    batch = batch_size

    def models(self):
        return self.samples

    def model(self):
        self.models()
        return super().model()
"""
    write_case(tmp_path, own)
    run_pytest(tmp_path, *ON_CPU, "--collect-only", "-q").ended()


def test_a_case_without_the_strategy_is_skipped(tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny")
    sizes = 'strategies = ("dp",)\n    sizes = {"big": Size(batch=4, sample_shape=(16,))}'
    sized = f"class Case(Tiny):\n    {sizes}"
    write_case(tmp_path, "from gpuscale import Size", sized, name="test_sized.py")
    session = run_pytest(tmp_path, *ON_CPU, "--strategy", "dp", "--runs", "1", "-rs").ended(1)
    assert "skipped: tiny has ddp only: leave out --strategy" in session.output
    assert "case has no size 'smoke'; it has big" in session.output
    assert "nothing was measured" in session.output
    assert not (tmp_path / ".gpuscale").exists()
