"""Proves the CUDA path on one GPU, within 20 minutes: `make gpu-check`.

Every check runs gpuscale as a user would and reads what it left. The report is written as
Markdown and JSON into `.gpuscale/gpu-check`. `--device cpu` rehearses the checks that need no GPU.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

import msgspec  # noqa: E402 - as below

from gpuscale.errors import GpuscaleError  # noqa: E402 - found beside this file, uninstalled too
from gpuscale.host import finding_gpuscale  # noqa: E402 - as above
from gpuscale.records import Run  # noqa: E402
from gpuscale.store import read_results  # noqa: E402

CASES = ("mnist_cnn", "mnist_net", "resnet50", "resnet50v2_cifar")
SMALLEST_SHARE_OF_BARE_LOOP = 0.98
LARGEST_PHASE_ERROR = 0.03
LARGEST_SPREAD = 0.02
LEFT_ON_DEVICE_MIB = 64
COMMAND_LIMIT_S = 420
BARE_SECONDS = 5.0
# Of GPUs that a shipped baseline publishes: images/s of one GPU.
PUBLISHED = {"A100": "JUWELS Booster: resnet50 624 images/s (precision not told)"}
TOO_LARGE = """
import pytest
from bench_cases.test_mnist_cnn import MnistCnn


class TooLarge(MnistCnn):
    strategies = ("ddp",)

    def forward(self, model, inputs):
        inputs.new_empty(2**44)
        return model(inputs)


class Small(MnistCnn):
    strategies = ("ddp",)


@pytest.mark.gpuscale(case=TooLarge)
def test_too_large(scaling):
    scaling()


@pytest.mark.gpuscale(case=Small)
def test_small(scaling):
    scaling()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found."""

    name: str
    passed: bool | None
    """None where there is nothing to hold it against."""
    said: str


class Checks:
    """The checks, on one device, with the folder for what they leave."""

    def __init__(self, device: str, folder: Path) -> None:
        self.on_gpu = device == "cuda"
        self._device = device
        self._folder = folder
        self._files = 0

    def command(
        self, *arguments: str, variables: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Exit code and output of Python with these arguments; 124 where it took too long."""
        try:
            answer = subprocess.run(
                [sys.executable, *arguments],
                cwd=self._folder,
                env={**finding_gpuscale(), "NO_COLOR": "1", **(variables or {})},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMMAND_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            return 124, str(error.output or "")
        return answer.returncode, answer.stdout

    def measure(
        self, case: str, *options: str, variables: Mapping[str, str] | None = None
    ) -> tuple[int, str, tuple[Run, ...]]:
        """Exit code, output and runs of a pytest session over a case, or a case file."""
        self._files += 1
        results = self._folder / f"results-{self._files}.jsonl"
        file = case if case.endswith(".py") else str(_case_file(case))
        plugin = ("-m", "pytest", "-p", "gpuscale.plugin", "-p", "no:cacheprovider", "-q", file)
        chosen = ("--device", self._device, "--results", str(results))
        code, output = self.command(*plugin, *chosen, *options, variables=variables)
        try:
            return code, output, tuple(read_results(results).runs)
        except (GpuscaleError, OSError):
            return code, output, ()

    def all(self) -> Iterator[Callable[[], Iterator[Finding]]]:
        """Every check, quick ones and those that others depend on first."""
        yield self.doctor
        yield self.shipped_cases
        yield self.two_ranks_on_one_gpu
        yield self.bare_loop
        yield self.precisions
        yield self.failures
        yield self.restarts
        yield self.overhead

    def doctor(self) -> Iterator[Finding]:
        """The GPUs, and whether NVML and nvidia-smi say the same of them."""
        code, output = self.command("-m", "gpuscale", "doctor", "--format", "json")
        if code == 2:
            yield Finding(name="doctor", passed=False, said=_last_line(output))
            return
        machine = json.loads(output)
        names = ", ".join(gpu["name"] for gpu in machine["gpus"]) or "no GPU"
        said = f"{names}; driver {machine['driver_version']}; {len(machine['problems'])} problems"
        yield Finding(
            name="doctor", passed=code == 0, said=" | ".join([said, *machine["problems"]])
        )
        for gpu in machine["gpus"]:
            yield _beside_nvidia_smi(gpu)

    def shipped_cases(self) -> Iterator[Finding]:
        """Each once on one GPU, at its full size there, with phases that add up."""
        for case in CASES:
            options = ("--gpus", "1", "--runs", "1", "--strategy", "ddp")
            code, output, runs = self.measure(case, *options)
            if code or not runs or not runs[0].is_valid:
                yield Finding(name=case, passed=False, said=_last_line(output))
                continue
            error = _phase_error(runs[0])
            passed = None if error is None else error <= LARGEST_PHASE_ERROR
            missed = "no phases" if error is None else f"phases miss {error:.1%} of a window"
            yield Finding(name=case, passed=passed, said=f"{_pace(runs[0])}; {missed}")

    def two_ranks_on_one_gpu(self) -> Iterator[Finding]:
        """The path of several ranks: digests, unsynchronised windows, a slow rank that is found."""
        options = ("--gpus", "2", "--runs", "1", "--strategy", "ddp", "--oversubscribe")
        name = "two ranks on one GPU" if self.on_gpu else "two ranks"
        code, output, runs = self.measure("mnist_cnn", *options)
        good = code == 0 and bool(runs) and runs[0].is_valid
        yield Finding(name=name, passed=good, said=_pace(runs[0]) if good else _last_line(output))
        healthy = _pace_ratio(runs)
        _, output, runs = self.measure("mnist_cnn", *options, "--inject", "slow-rank=1:1.2")
        slow = _pace_ratio(runs)
        if healthy is None or slow is None:
            said, found = _last_line(output), False
        else:
            # On a shared GPU the slowness of one holds up the other too.
            said, found = f"rank 1 ×{slow:.2f}, healthy ×{healthy:.2f}", slow / healthy > 1.05
        yield Finding(name=f"{name}, slow-rank=1:1.2", passed=found, said=said)
        # An experiment: NCCL may refuse this, or hang.
        code, output, runs = self.measure(
            "mnist_cnn", *options, "--timeout", "90", variables={"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
        )
        said = _pace(runs[0]) if runs and runs[0].is_valid else _last_line(output)
        yield Finding(name=f"{name}, over NCCL", passed=None, said=said)

    def bare_loop(self) -> Iterator[Finding]:
        """ResNet-50 against a bare loop on one resident batch, and over a loader."""
        for options in ((), ("--precision", "bf16", "--channels-last")):
            words = " ".join(options) or "fp32"
            code, output = self.command(
                str(Path(__file__).resolve()), "--bare", *options, "--device", self._device
            )
            bare = float(output.split()[-1]) if code == 0 else None
            code, output, runs = self.measure("resnet50", "--gpus", "1", "--runs", "2", *options)
            paces = [pace for run in runs if (pace := _samples_per_s(run))]
            if bare is None or not paces:
                yield Finding(name=f"bare loop, {words}", passed=False, said=_last_line(output))
                continue
            share = statistics.fmean(paces) / bare
            said = f"{statistics.fmean(paces):.1f} images/s, {share:.3f} of {bare:.1f}"
            passed = share >= SMALLEST_SHARE_OF_BARE_LOOP
            yield Finding(name=f"bare loop, {words}", passed=passed, said=said)
        _, output, runs = self.measure("resnet50", "--gpus", "1", "--runs", "1", "--data", "loader")
        said = _pace(runs[0]) if runs and runs[0].is_valid else _last_line(output)
        yield Finding(name="resnet50 over a loader", passed=None, said=said)

    def precisions(self) -> Iterator[Finding]:
        """Every way of computing that can be asked for."""
        for options in (("--precision", "tf32"), ("--precision", "fp16"), ("--compile",)):
            code, output, runs = self.measure(
                "mnist_cnn", "--gpus", "1", "--runs", "1", "--strategy", "ddp", *options
            )
            good = code == 0 and bool(runs) and runs[0].is_valid
            said = _pace(runs[0]) if good else _last_line(output)
            yield Finding(name=" ".join(options), passed=good, said=said)

    def failures(self) -> Iterator[Finding]:
        """A crash, a hang and too large a step: told, ended, and nothing left on the device."""
        file = self._folder / "test_too_large.py"
        file.write_text(TOO_LARGE)
        before_mib = self._used_mib()
        for case, words, options in (
            ("mnist_cnn", "killed by SIGSEGV", ("--inject", "crash=0@5")),
            ("mnist_cnn", "not done after 40 s", ("--inject", "hang=0@5", "--timeout", "40")),
            (str(file), "out of memory", ()),
        ):
            common = ("--gpus", "1", "--runs", "1", "--strategy", "ddp")
            _, output, runs = self.measure(case, *common, *options)
            failed = [run.failure.message for run in runs if run.failure is not None]
            told = any(words in message for message in failed)
            went_on = case == "mnist_cnn" or any(run.is_valid for run in runs)
            left_mib = self._used_mib() - before_mib
            said = f"{(failed or [_last_line(output)])[0][:200]}; {left_mib} MiB more in use after"
            passed = told and went_on and left_mib <= LEFT_ON_DEVICE_MIB
            yield Finding(name=options[1] if options else "too large", passed=passed, said=said)

    def restarts(self) -> Iterator[Finding]:
        """How much four fresh starts differ."""
        _, output, runs = self.measure(
            "mnist_cnn", "--gpus", "1", "--runs", "4", "--strategy", "ddp"
        )
        paces = [pace for run in runs if (pace := _samples_per_s(run))]
        if len(paces) < 4:
            yield Finding(name="four restarts", passed=False, said=_last_line(output))
            return
        spread = statistics.stdev(paces) / statistics.fmean(paces)
        said = f"standard deviation {spread:.2%} of {statistics.fmean(paces):.0f} samples/s"
        yield Finding(name="four restarts", passed=spread <= LARGEST_SPREAD, said=said)

    def overhead(self) -> Iterator[Finding]:
        """Measuring against a bare loop with the same data, by gpuscale's own trial."""
        selftest = ("-m", "gpuscale", "selftest", "--overhead", "--gpus", "1", "--runs", "4")
        case = ("resnet50", "Resnet50") if self.on_gpu else ("mnist_cnn", "MnistCnn")
        chosen = ("--device", self._device, "--case", f"{_case_file(case[0])}::{case[1]}")
        code, output = self.command(*selftest, *chosen)
        lines = [line for line in output.splitlines() if "×" in line or "[" in line]
        said = " | ".join(lines[:2]) or _last_line(output)
        yield Finding(name="overhead", passed={0: True, 3: None}.get(code, False), said=said)

    def _used_mib(self) -> int:
        if not self.on_gpu:
            return 0
        # A context is taken down a moment after its process.
        time.sleep(2)
        return int(_nvidia_smi("memory.used", "0"))


def _case_file(case: str) -> Path:
    return REPOSITORY / "bench_cases" / f"test_{case}.py"


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or "ERROR" in line]
    return (told or lines or ["it printed nothing"])[-1][:300]


def _samples_per_s(run: Run) -> float | None:
    return run.gpus * (run.batch_per_gpu or 0) / run.step_time_s if run.is_valid else None


def _pace(run: Run) -> str:
    return f"{1000 * run.step_time_s:.2f} ms, {_samples_per_s(run):.1f} samples/s"


def _pace_ratio(runs: Sequence[Run]) -> float | None:
    """Rank 1's own seconds per step over rank 0's."""
    paces_s = [rank.pace_s for rank in runs[0].ranks] if runs else []
    if len(paces_s) != 2 or not paces_s[0] or not paces_s[1]:
        return None
    return paces_s[1] / paces_s[0]


def _phase_error(run: Run) -> float | None:
    """The largest part of a window that its phases miss or exceed."""
    errors = [
        abs(1 - sum(msgspec.structs.astuple(window.phases)) / window.busy_s[0])
        for window in run.windows
        if window.phases is not None
    ]
    return max(errors, default=None)


def _nvidia_smi(field: str, gpu: str) -> str:
    query = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits", f"--id={gpu}"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


def _beside_nvidia_smi(gpu: dict[str, Any]) -> Finding:
    """What NVML answered gpuscale, beside nvidia-smi."""
    condition = gpu["condition"] or {}
    pairs = {
        "name": gpu["name"],
        "power.limit": condition.get("power_limit_w"),
        "pcie.link.gen.max": condition.get("pcie_max_generation"),
        "pcie.link.width.max": condition.get("pcie_max_width"),
    }
    differ = []
    for field, ours in pairs.items():
        theirs = _nvidia_smi(field, gpu["uuid"])
        same = theirs == str(ours) or _number(theirs) == _number(str(ours))
        if not same:
            differ.append(f"{field}: {ours} beside {theirs}")
    said = "; ".join(differ) or f"the same: {', '.join(pairs)}"
    return Finding(
        name=f"NVML beside nvidia-smi, GPU {gpu['number']}", passed=not differ, said=said
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def bare_images_per_s(device: str, *, precision: str, channels_last: bool) -> float:
    """Images/s of ResNet-50 in a loop of its own, on one batch that stays on the device."""
    import torch

    from bench_cases.test_resnet50 import Resnet50
    from gpuscale.worker.training import set_fp32_mode

    # As the ranks have it.
    torch.set_num_threads(1)
    set_fp32_mode("fp32")
    case = Resnet50()
    size = case.named_size("full" if device == "cuda" else "smoke")
    form = torch.channels_last if channels_last else torch.contiguous_format
    model = case.model().to(device).to(memory_format=form)
    optimizer = case.optimizer(model, 1)
    inputs = torch.rand(size.batch, *size.sample_shape, device=device).to(memory_format=form)
    targets = torch.randint(case.classes, (size.batch,), device=device)

    def steps(count: int) -> float:
        begun = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bf16"):
                loss = case.loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begun) / count

    steps(10)
    count = max(3, round(BARE_SECONDS / steps(3)))
    return size.batch / statistics.median(steps(count) for _ in range(3))


def report(findings: Sequence[Finding], device: str, seconds: float) -> str:
    """The findings as Markdown."""
    import torch

    marks = {True: "yes", False: "**no**", None: "–"}
    name = torch.cuda.get_device_name(0) if device == "cuda" else platform.processor() or "CPU"
    published = [words for gpu, words in PUBLISHED.items() if gpu in name]
    lines = [
        f"## GPU check of {time.strftime('%Y-%m-%d')}: {name}",
        "",
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"Python {platform.python_version()}, {platform.platform()}; {seconds / 60:.1f} minutes.",
        *(f"Published of this GPU: {words}." for words in published),
        "",
        "| check | passed | seen |",
        "|---|---|---|",
    ]
    rows = (f"| {f.name} | {marks[f.passed]} | {f.said.replace('|', '/')} |" for f in findings)
    return "\n".join([*lines, *rows, ""])


def main() -> int:
    """Make all checks; 0 where none failed, 1 where one did."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=Path(".gpuscale/gpu-check"), metavar="DIR")
    parser.add_argument("--only", metavar="CHECK", help="one of the checks, by its method's name")
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--precision", default="fp32", help=argparse.SUPPRESS)
    parser.add_argument("--channels-last", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        pace = bare_images_per_s(
            options.device, precision=options.precision, channels_last=options.channels_last
        )
        print(pace)  # noqa: T201 - its one result
        return 0
    begun = time.monotonic()
    out = options.out.absolute()
    work = out / time.strftime("%Y%m%dT%H%M%S")
    work.mkdir(parents=True)
    findings: list[Finding] = []
    for check in Checks(options.device, work).all():
        if options.only in (None, check.__name__):
            for finding in check():
                findings.append(finding)
                mark = {True: "ok", False: "FAILED", None: "--"}[finding.passed]
                print(f"{mark:6} {finding.name}: {finding.said}", flush=True)  # noqa: T201 - as it goes
    text = report(findings, options.device, time.monotonic() - begun)
    (out / "report.md").write_text(text, encoding="utf-8")
    document = json.dumps([asdict(finding) for finding in findings], indent=1, ensure_ascii=False)
    (out / "report.json").write_text(document + "\n", encoding="utf-8")
    print(f"report: {out / 'report.md'}")  # noqa: T201 - its one result
    return 1 if any(finding.passed is False for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
