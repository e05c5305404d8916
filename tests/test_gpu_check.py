"""The check of the CUDA path, where there is no GPU to check it on."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from amdsmi_library.library import Layouts, mi250x, write_fleet
from builders import run, with_values
from changing import replace
from ci_checkout import write_program
from hosts import processes_in, within_limit
from measuring import emulated_gpus

from ci.gpu_check import (
    REPOSITORY,
    Checks,
    check_libraries,
    check_nccl_log,
    check_packages,
    check_telemetry,
)
from ci.gpu_report import About, Finding, Report, make_checks
from gpuscale.base.errors import GpuscaleError
from gpuscale.measure.evidence.software import installed_packages
from gpuscale.records import NodeEvidence, Run
from gpuscale.records.evidence import Library
from gpuscale.workload.cases import case_class

ABOUT = About(device="Some GPU", software="torch 2", system="Linux", uuid="a")


def fails() -> Iterator[Finding]:
    yield Finding(name="begun", passed=True, said="well")
    raise ZeroDivisionError("no such number")


def test_a_check_that_fails_itself_costs_no_other_its_finding(tmp_path: Path) -> None:
    report = Report(about=ABOUT)
    unknown = Finding(name="well", passed=None, said="1 | 2")
    checks = {"first": fails, "second": lambda: iter([unknown])}
    assert not make_checks(report, checks, tmp_path)
    said = [(f.name, f.passed) for made in report.checks.values() for f in made.findings]
    assert said == [("begun", True), ("first", False), ("well", None)]
    text = (tmp_path / "report.md").read_text()
    assert "| first | **no** | the check itself failed: ZeroDivisionError: no such number" in text
    assert "| well | – | 1 / 2 |" in text


@pytest.mark.parametrize(
    ("field", "said", "same"),
    [
        ("none", "", True),
        ("name", "Fake V100 B", False),
        ("enforced.power.limit", "301.00", False),
        ("enforced.power.limit", "[N/A]", False),
    ],
)
def test_nvidia_smi_that_says_otherwise_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: Path, field: str, said: str, same: bool
) -> None:
    told = {"name": "Fake V100 A", "enforced.power.limit": "300.00"}
    told |= {"pcie.link.gen.max": "3", "pcie.link.width.max": "16", field: said}
    lines = [f"--query-gpu={each}) echo '{value}';;" for each, value in told.items()]
    script = "\n".join(["#!/bin/sh", 'case "$1" in', *lines, "esac\n"])
    write_program(tmp_path / "nvidia-smi", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    monkeypatch.setenv("FAKE_NVML_FLEET", "0")
    findings = list(Checks("cuda", tmp_path).doctor())
    assert [finding.passed for finding in findings] == [True, same]


def with_counters(**counters: float | None) -> Run:
    """A run on a GPU that is the one of its rank, with these counters."""
    measured = run(1, 1.0, peak_memory_bytes=2**30, utilization=0.98)
    (summary,), (rank,) = measured.gpu_summaries, measured.ranks
    summaries = (with_values(summary, **counters),)
    ranks = (replace(rank, device_uuids=(summary.uuid,)),)
    return replace(measured, gpu_summaries=summaries, ranks=ranks)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({}, None),
        # Units that are off by a thousand, another device's counters, and none.
        ({"energy_j": 300_000.0}, "energy and power differ"),
        ({"memory_used_peak_bytes": 2.0**20}, "torch had more memory than was in use"),
        ({"utilization_mean": 0.009}, "the GPU was idle"),
        ({"power_mean_w": None}, "no power_mean_w: "),
    ],
)
def test_implausible_counters_fail(wrong: dict[str, float | None], problem: str | None) -> None:
    right = {"energy_j": 300.0, "power_mean_w": 310.0, "memory_used_peak_bytes": 2.0**31}
    measured = with_counters(**{**right, **wrong})
    finding = check_telemetry(measured)
    assert finding.passed is (problem is None), finding.said
    assert (problem or "98% busy, 310 W, 300 W by energy, 2048 MiB in use") in finding.said
    elsewhere = replace(measured.ranks[0], device_uuids=("another",))
    assert not check_telemetry(replace(measured, ranks=(elsewhere,))).passed
    assert not check_telemetry(replace(measured, gpu_summaries=())).passed


def test_half_a_module_of_amd_is_judged_without_its_power() -> None:
    measured = with_counters(energy_j=None, power_mean_w=None, memory_used_peak_bytes=2.0**31)
    why = "power: AMD SMI measures it for both devices of a module together"
    half = replace(measured.gpu_summaries[0], absent=(why,))
    finding = check_telemetry(replace(measured, gpu_summaries=(half,)))
    assert finding.passed, finding.said
    assert finding.said.startswith("98% busy, power of the whole module alone, 2048 MiB in use")
    idle = with_values(half, utilization_mean=0.01)
    assert not check_telemetry(replace(measured, gpu_summaries=(idle,))).passed


def test_every_check_heeds_a_small_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def command(checks: Checks, *words: str, variables: object = None) -> tuple[int, str]:
        asked.append(words)
        return 1, "an Error"

    monkeypatch.setattr(Checks, "command", command)
    checks = Checks("rocm", tmp_path, size="smoke")
    assert [finding.passed for finding in checks.bare_loop()] == [False, False]
    with pytest.raises(GpuscaleError):
        list(checks.overhead())
    assert [words[-4:-2] for words in asked[:2]] == [("--size", "smoke")] * 2
    small = f"{tmp_path / 'small.py'}::Small"
    assert small in asked[2]
    assert case_class(small)().named_size("full").batch == 16


def test_checks_run_without_gpuscale_installed(tmp_path: Path) -> None:
    command = [sys.executable, str(REPOSITORY / "ci" / "gpu_check.py"), "--device", "cpu"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def check(*options: str) -> "subprocess.CompletedProcess[str]":
        words = [*command, *options]
        return subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    done = check("--only", "doctor")
    assert "report: " in done.stdout, done.stderr
    assert "| doctor | " in (tmp_path / ".gpuscale/gpu-check/report.md").read_text()
    # It is in the report already, and nothing is left to be made.
    resumed = check("--only", "doctor", "--resume")
    assert (resumed.returncode, resumed.stdout.count("\n")) == (0, 1)
    refused = check("--only", "doctor,that")
    assert refused.returncode == 2
    assert "no check that; there are doctor, shipped_cases" in refused.stderr


def test_the_device_is_that_of_torch_and_amds_gpus_are_examined(
    tmp_path: Path, amd_library: tuple[Path, Layouts]
) -> None:
    root, layouts = amd_library
    table = write_fleet(tmp_path / "fleet", layouts, [mi250x(0xC1)])
    amds = {"EMULATED_ROCM": "gfx90a", "ROCM_PATH": str(root), "FAKE_AMDSMI": str(table)}
    there = {**emulated_gpus(1), **amds}
    command = (sys.executable, str(REPOSITORY / "ci" / "gpu_check.py"), "--only", "doctor")
    subprocess.run(command, cwd=tmp_path, env={**os.environ, **there}, check=False, timeout=240)
    report = (tmp_path / ".gpuscale/gpu-check/report.md").read_text()
    assert "ROCm 6.4" in report
    # It is hot, as the doctor finds.
    assert "| doctor | **no** | AMD Instinct MI250X; driver 6.12.12; 1 problems / GPU 0" in report


def test_the_recorded_packages_must_be_those_of_the_interpreter() -> None:
    recorded = dict(installed_packages(map(Path, sys.path)))
    right = check_packages(recorded)
    assert right.passed, right.said
    assert right.said.startswith(f"torch {recorded['torch']} and ")
    assert not check_packages({**recorded, "torch": "0.1"}).passed
    missing = {name: version for name, version in recorded.items() if name != "numpy"}
    assert check_packages(missing).said.endswith("wrong or missing: numpy")


def test_what_a_check_has_started_ends_with_it(tmp_path: Path) -> None:
    def is_measuring() -> bool:
        return any(" --results " in words for words in processes_in(tmp_path))

    script = str(REPOSITORY / "ci" / "gpu_check.py")
    options = ("--device", "cpu", "--only", "shipped_cases", "--out", str(tmp_path))
    check = subprocess.Popen([sys.executable, script, *options], cwd=tmp_path)
    try:
        assert within_limit(is_measuring)
    finally:
        check.kill()
        check.wait()
    assert within_limit(lambda: not is_measuring())


def test_a_log_of_nccl_that_says_nothing_is_no_pass() -> None:
    def checked(node: NodeEvidence) -> Finding:
        return check_nccl_log(replace(run(1, 0.1), nodes=(node,)))

    known = NodeEvidence(host="n1", connections={"channels": "24", "library": "NCCL 2.28.9"})
    assert checked(known).passed
    assert "channels 24" in checked(known).said
    unread = checked(NodeEvidence(host="n1", absent={"nccl": "no line is known"}))
    assert (unread.passed, unread.said) == (False, "no line is known")
    assert not checked(NodeEvidence(host="n1")).passed


@pytest.mark.parametrize(("device", "wanted"), [("cuda", "NCCL"), ("rocm", "RCCL")])
def test_the_vendors_library_must_have_told_its_version(device: str, wanted: str) -> None:
    measured = run(1, 0.1)
    measured = replace(measured, configuration=replace(measured.configuration, device=device))

    def passed(name: str, version: str | None) -> bool | None:
        loaded = Library(name=name, path="/opt/lib.so", version=version)
        node = NodeEvidence(host="n1", libraries=(loaded,))
        return check_libraries(replace(measured, nodes=(node,))).passed

    assert passed(wanted, "2.28.3")
    assert not passed(wanted, None)
    assert not passed("libfabric", "1.15")
    assert not check_libraries(measured).passed
