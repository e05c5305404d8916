"""Faults on purpose: what may be asked for, and that such results never pass for real ones."""

import json
from pathlib import Path

import pytest
from command_line import gpuscale, refusal
from hypothesis import given
from hypothesis import strategies as st
from measuring import REPOSITORY, run_pytest, write_case

from gpuscale.base.errors import UsageError
from gpuscale.store.results import read_results
from gpuscale.workload import injections
from gpuscale.workload.injections import Faults, Injection, parse_injection

WARNING = "INJECTED data=5ms, slow-rank=1:1.2: not a real result"


@pytest.mark.parametrize(
    ("text", "injection"),
    [
        ("data=5ms", Injection(kind="data", seconds=0.005)),
        (" data=0.25s ", Injection(kind="data", seconds=0.25)),
        ("data=750us", Injection(kind="data", seconds=0.00075)),
        ("slow-rank=1:1.2", Injection(kind="slow-rank", rank=1, factor=1.2)),
        ("compute=1.1", Injection(kind="compute", factor=1.1)),
        ("hang=1@50", Injection(kind="hang", rank=1, step=50)),
        ("crash=0@20", Injection(kind="crash", rank=0, step=20)),
    ],
)
def test_each_fault_is_read(text: str, injection: Injection) -> None:
    assert parse_injection(text) == injection


@pytest.mark.parametrize(
    "text",
    [
        *("", "network=2", "data=", "data=0ms", "data=61s", "data=5", "compute=1", "compute=101"),
        *("compute=nan", "slow-rank=1", "slow-rank=:1.2", "hang=1", "hang=1@0", "crash=x@20"),
        "crash=0@" + "9" * 5000,
    ],
)
def test_a_text_that_means_nothing_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_injection(text)
    assert str(caught.value).startswith(f"--inject: '{text}' is not a known fault; try one of")
    assert "data=5ms, slow-rank=1:1.2, compute=1.1, hang=1@50, crash=0@20" in str(caught.value)


@given(st.text(max_size=30) | st.from_regex(r"[a-z-]{1,9}=\S{0,12}", fullmatch=True))
def test_any_other_text_is_a_usage_error_and_nothing_else(text: str) -> None:
    try:
        parse_injection(text)
    except UsageError:
        return


def test_a_session_with_faults_says_so_wherever_its_numbers_are_shown(tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny")
    asked = ("--gpus", "1,2", "--runs", "1", "--device", "cpu", "--run-seconds", "0.1")
    faults = ("--inject", "data=5ms", "--inject", "slow-rank=1:1.2")
    into = ("--results", "n.jsonl", "--benchmark-json", "benchmark.json")
    session = run_pytest(tmp_path, *asked, *faults, *into).ended()
    for benchmark in json.loads((tmp_path / "benchmark.json").read_text())["benchmarks"]:
        assert benchmark["extra_info"]["injections"] == ["data=5ms", "slow-rank=1:1.2"]
    assert session.output.count(WARNING) == 2
    assert WARNING in session.output.split(" scaling -")[1]
    path = tmp_path / "n.jsonl"
    assert read_results(path).injections == ("data=5ms", "slow-rank=1:1.2")
    assert gpuscale("show", path).stdout.splitlines()[0] == WARNING

    # They are compared all the same, with the same exit code: a trial of gpuscale itself.
    baseline = REPOSITORY / "baselines" / "arc4.json"
    answer = gpuscale("compare", baseline, path)
    assert answer.stdout.splitlines()[0] == WARNING
    document = json.loads(gpuscale("compare", baseline, path, "--format", "json").stdout)
    assert document["injections"] == ["data=5ms", "slow-rank=1:1.2"]
    assert answer.returncode == document["exit_code"] == 4

    said = refusal("baseline", "record", path, "--cluster", "x", "-o", tmp_path / "b.json")
    assert "a baseline needs real ones, measured without --inject" in said
    assert not (tmp_path / "b.json").exists()


class MadeTime:
    """A host and a device that each have their own work, side by side."""

    host_s = 0.0
    device_s = 0.0

    def perf_counter(self) -> float:
        # Reading a clock takes time too, so a rank that waits for a moment gets there.
        self.host_s += 1e-6
        return self.host_s

    def synchronize(self) -> None:
        self.host_s = max(self.host_s, self.device_s)

    def step(self, asked: Faults, *, host_s: float, device_s: float) -> None:
        asked.at_step(1)
        with asked.in_forward():
            self.host_s += host_s
            self.device_s = max(self.device_s, self.host_s) + device_s


@pytest.mark.parametrize(("host_s", "device_s"), [(0.002, 0.01), (0.01, 0.002), (0.01, 0.01)])
def test_a_rank_is_slower_by_its_factor_whether_its_host_or_its_gpu_sets_the_pace(
    monkeypatch: pytest.MonkeyPatch, host_s: float, device_s: float
) -> None:
    time = MadeTime()
    monkeypatch.setattr(injections, "time", time)
    asked = Faults([parse_injection("compute=1.5")], rank=0, synchronize=time.synchronize)
    time.step(asked, host_s=host_s, device_s=device_s)
    pace_s = time.host_s
    asked.set_pace(pace_s)
    for _ in range(100):
        time.step(asked, host_s=host_s, device_s=device_s)
    assert (time.host_s - pace_s) / 100 == pytest.approx(1.5 * pace_s, rel=0.02)
