"""Check the path through CUDA or ROCm on one GPU within 20 minutes: `make gpu-check`.

Every check runs gpuscale as a user would, and reads the results. The report, in Markdown and JSON
in `.gpuscale/gpu-check`, is rewritten after each finding. If time is short, `--only` runs selected
checks, and `--resume` runs the checks missing from the report; all results go into one report.
`--device cpu` rehearses the checks that need no GPU, and `--size smoke` is for a slow device. Any
Python with gpuscale's requirements will do; gpuscale itself need not be installed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

import msgspec  # noqa: E402 - as below

from ci.gpu_report import About, Finding, Report, earlier_report, make_checks  # noqa: E402
from gpuscale.base import process_ends  # noqa: E402 - found beside this file, uninstalled too
from gpuscale.base.errors import DeviceAbsentError, GpuscaleError  # noqa: E402 - as above
from gpuscale.base.host import DEVICES, is_gpu, python_environment  # noqa: E402
from gpuscale.measure.telemetry.device import open_smi  # noqa: E402
from gpuscale.records import Run  # noqa: E402
from gpuscale.records.evidence import normalised  # noqa: E402
from gpuscale.store.results import read_results  # noqa: E402

CASES = ("mnist_cnn", "mnist_net", "resnet50", "resnet_v2_cifar")
KEEPS_GPU_BUSY = "resnet50"
SMALLEST_SHARE_OF_BARE_LOOP = 0.98
SMALLEST_UTILIZATION = 0.5
# Relative difference between mean power from the energy counter and from samples of power.
LARGEST_POWER_ERROR = 0.25
LARGEST_PHASE_ERROR = 0.03
LARGEST_SPREAD = 0.02
LEFT_ON_DEVICE_MIB = 64
COMMAND_LIMIT_S = 420
RUN_LIMIT_S = "200"
# For runs whose step times do not matter.
SHORT = ("--run-seconds", "6")
# The first compute capability with TF32, and with bf16 in hardware.
_FIRST_WITH_TF32 = 8
# Runs in another process: a CUDA context in this one would count as used memory.
ABOUT = """
import json, platform, sys, torch
gpu = torch.cuda.get_device_properties(0) if sys.argv[1] != "cpu" else None
hip = torch.version.hip
print(json.dumps({
    "address": None if gpu is None or not hip or not hasattr(gpu, "pci_bus_id")
    else f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0",
    "device": platform.processor() or "CPU" if gpu is None else gpu.name,
    "uuid": None if gpu is None else str(gpu.uuid),
    "major": None if gpu is None or hip else gpu.major,
    "software": f"torch {torch.__version__}, "
    f"{'ROCm' if hip else 'CUDA'} {hip or torch.version.cuda}, Python {platform.python_version()}",
    "system": platform.platform(),
}))
"""
DEVICE = "import torch; print('rocm' if torch.version.hip else 'cuda')"
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


SMALL = """
from bench_cases.test_mnist_cnn import MnistCnn


class Small(MnistCnn):
    sizes = dict.fromkeys(MnistCnn.sizes, MnistCnn.sizes["smoke"])
"""
POWER = ("power_mean_w", "energy_j")


class Checks:
    """The checks on one device, with a folder for the files they write."""

    def __init__(self, device: str, folder: Path, *, size: str | None = None) -> None:
        self.on_gpu = is_gpu(device)
        self.uuid: str | None = None
        """UUID of the GPU as CUDA reports it; None without a GPU."""
        self.address: str | None = None
        """PCI address of a GPU of AMD."""
        self.has_tf32 = True
        self._device = device
        self._folder = folder
        self._size = () if size is None else ("--size", size)
        self._files = 0
        self._packages: Mapping[str, str] = {}
        """Packages that the last results recorded, with their versions."""

    def command(
        self, *arguments: str, variables: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Run Python; return the exit code, which is 124 after a timeout, and the output."""
        # The command ends with this process, whose lease on the GPU may expire.
        tied = (process_ends.__file__, str(os.getpid()), sys.executable)
        try:
            answer = subprocess.run(
                [sys.executable, *tied, *arguments],
                cwd=self._folder,
                env={**python_environment(), "NO_COLOR": "1", **(variables or {})},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMMAND_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            # Bytes, even with text=True.
            output = error.output.decode(errors="replace") if error.output else ""
            return 124, f"{output}\nnot done after {COMMAND_LIMIT_S} s"
        return answer.returncode, answer.stdout

    def about(self) -> About:
        """Return torch's description of the device; raise a GpuscaleError if torch fails."""
        code, output = self.command("-c", ABOUT, self._device)
        if code:
            raise GpuscaleError(f"torch does not describe its device: {_last_line(output)}")
        about = msgspec.json.decode(output.splitlines()[-1], type=About)
        self.uuid, self.address = about.uuid, about.address
        self.has_tf32 = about.major is None or about.major >= _FIRST_WITH_TF32
        return about

    def measure(
        self, case: str, *options: str, variables: Mapping[str, str] | None = None
    ) -> tuple[int, str, tuple[Run, ...]]:
        """Measure a case or case file with pytest; return exit code, output and runs."""
        self._files += 1
        results = self._folder / f"results-{self._files}.jsonl"
        file = case if case.endswith(".py") else str(_case_file(case))
        plugin = ("-m", "pytest", "-p", "gpuscale.plugin", "-p", "no:cacheprovider", "-q", file)
        chosen = ("--device", self._device, "--results", str(results), "--timeout", RUN_LIMIT_S)
        code, output = self.command(*plugin, *chosen, *self._size, *options, variables=variables)
        try:
            found = read_results(results)
            self._packages = found.environment.packages
            return code, output, tuple(found.runs)
        except (GpuscaleError, OSError):
            return code, output, ()

    def all(self) -> dict[str, Callable[[], Iterator[Finding]]]:
        """Return all checks by name; quick checks, and checks that others depend on, come first."""
        checks = (
            *(self.doctor, self.shipped_cases, self.two_ranks_on_one_gpu, self.precisions),
            *(self.failures, self.bare_loop, self.overhead, self.loader, self.ranks_over_nccl),
        )
        return {check.__name__: check for check in checks}

    def doctor(self) -> Iterator[Finding]:
        """Run `gpuscale doctor`, and compare NVML's answers with nvidia-smi's."""
        code, output = self.command("-m", "gpuscale", "doctor", "--format", "json")
        machine = _document(output)
        names = ", ".join(gpu["name"] for gpu in machine["gpus"]) or "no GPU"
        said = f"{names}; driver {machine['driver_version']}; {len(machine['problems'])} problems"
        # A machine without a driver has no problem, but cannot be checked either.
        passed = code == 0 and bool(machine["gpus"] or not self.on_gpu)
        yield Finding(name="doctor", passed=passed, said=" | ".join([said, *machine["problems"]]))
        # AMD SMI's own command reads the same library, so it would prove nothing.
        for gpu in machine["gpus"] if machine["smi"] == "NVML" else ():
            yield _beside_nvidia_smi(gpu)

    def shipped_cases(self) -> Iterator[Finding]:
        """Measure each shipped case once on one GPU; phases must add up to the windows."""
        for case in CASES:
            options = ("--gpus", "1", "--runs", "1", "--strategy", "ddp")
            code, output, runs = self.measure(case, *options)
            if code or not runs or not runs[0].is_valid:
                yield Finding(name=case, passed=False, said=_outcome(runs, output))
                continue
            error = _phase_error(runs[0])
            passed = None if error is None else error <= LARGEST_PHASE_ERROR
            missed = "no phases" if error is None else f"phases miss {error:.1%} of a window"
            yield Finding(name=case, passed=passed, said=f"{_pace(runs[0])}; {missed}")
            if self.on_gpu and case == KEEPS_GPU_BUSY:
                yield check_telemetry(runs[0])
                yield check_nccl_log(runs[0])
                yield check_libraries(runs[0])
                yield check_packages(self._packages)

    def two_ranks_on_one_gpu(self) -> Iterator[Finding]:
        """Exercise runs of several ranks: digests, free-running windows, and a slow rank."""
        options = ("--gpus", "2", "--runs", "1", "--strategy", "ddp", "--oversubscribe", *SHORT)
        name = "two ranks on one GPU" if self.on_gpu else "two ranks"
        _, output, runs = self.measure("mnist_cnn", *options)
        yield Finding(name=name, passed=_works(runs), said=_outcome(runs, output))
        healthy = _pace_ratio(runs)
        _, output, runs = self.measure("mnist_cnn", *options, "--inject", "slow-rank=1:1.2")
        slow = _pace_ratio(runs)
        if healthy is None or slow is None:
            said, found = _outcome(runs, output), False
        else:
            # On a shared GPU a slow rank slows the other one down too.
            said, found = f"rank 1 ×{slow:.2f}, healthy ×{healthy:.2f}", slow / healthy > 1.05
        yield Finding(name=f"{name}, slow-rank=1:1.2", passed=found, said=said)

    def bare_loop(self) -> Iterator[Finding]:
        """Compare ResNet-50 with a bare loop that also copies batches; check the spread of runs."""
        for options, runs_asked in (((), 4), (("--precision", "bf16", "--channels-last"), 2)):
            words = " ".join(options) or "fp32"
            if "bf16" in options and not self.has_tf32:
                yield Finding(name=f"bare loop, {words}", passed=None, said="this GPU has no bf16")
                continue
            code, output = self.command(
                str(REPOSITORY / "ci" / "bare_resnet50.py"),
                *options,
                *self._size,
                # As torch calls both vendors'.
                *("--device", "cuda" if self.on_gpu else "cpu"),
            )
            if code:
                yield Finding(name=f"bare loop, {words}", passed=False, said=_last_line(output))
                continue
            bare, resident = map(float, output.split()[-2:])
            _, output, runs = self.measure(
                "resnet50", "--gpus", "1", "--runs", str(runs_asked), "--strategy", "ddp", *options
            )
            paces = [pace for run in runs if (pace := _samples_per_s(run))]
            if len(paces) < runs_asked:
                yield Finding(name=f"bare loop, {words}", passed=False, said=_outcome(runs, output))
                continue
            mean = statistics.fmean(paces)
            said = (
                f"{mean:.1f} images/s, {mean / bare:.3f} of {bare:.1f}; "
                f"{mean / resident:.3f} of {resident:.1f} with a batch that stays on the device"
            )
            passed = mean / bare >= SMALLEST_SHARE_OF_BARE_LOOP
            yield Finding(name=f"bare loop, {words}", passed=passed, said=said)
            if not options:
                spread = statistics.stdev(paces) / mean
                said = f"standard deviation {spread:.2%} of {mean:.1f} images/s"
                yield Finding(name="four restarts", passed=spread <= LARGEST_SPREAD, said=said)

    def loader(self) -> Iterator[Finding]:
        """Measure ResNet-50 with images from loader processes."""
        _, output, runs = self.measure("resnet50", "--gpus", "1", "--runs", "1", "--data", "loader")
        yield Finding(name="resnet50 over a loader", passed=None, said=_outcome(runs, output))

    def ranks_over_nccl(self) -> Iterator[Finding]:
        """Try two ranks on one GPU over NCCL, which may refuse them or hang."""
        options = ("--gpus", "2", "--runs", "1", "--strategy", "ddp", "--oversubscribe", *SHORT)
        variables = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
        _, output, runs = self.measure(
            "mnist_cnn", *options, "--timeout", "90", variables=variables
        )
        name = f"two ranks on one GPU, over {_nccl(self._device)}"
        yield Finding(name=name, passed=None, said=_outcome(runs, output))

    def precisions(self) -> Iterator[Finding]:
        """Measure in TF32 and fp16, and with torch.compile."""
        for options in (("--precision", "tf32"), ("--precision", "fp16"), ("--compile",)):
            _, output, runs = self.measure(
                "mnist_cnn", "--gpus", "1", "--runs", "1", "--strategy", "ddp", *SHORT, *options
            )
            good = _works(runs)
            if "tf32" in options and not self.has_tf32:
                good = any(run.failure and "has no TF32" in run.failure.message for run in runs)
            yield Finding(name=" ".join(options), passed=good, said=_outcome(runs, output))

    def failures(self) -> Iterator[Finding]:
        """Provoke a crash, a hang and an out-of-memory error; check reporting and cleanup."""
        file = self._folder / "test_too_large.py"
        file.write_text(TOO_LARGE)
        before_mib = self._used_mib()
        for case, words, options in (
            ("mnist_cnn", "killed by SIGSEGV", ("--inject", "crash=0@5")),
            ("mnist_cnn", "not done after 40 s", ("--inject", "hang=0@5", "--timeout", "40")),
            (str(file), "out of memory", ()),
        ):
            common = ("--gpus", "1", "--runs", "1", "--strategy", "ddp", *SHORT)
            _, output, runs = self.measure(case, *common, *options)
            failed = [run.failure.message for run in runs if run.failure is not None]
            is_reported = any(words in message for message in failed)
            went_on = case == "mnist_cnn" or any(run.is_valid for run in runs)
            left_mib = self._used_mib() - before_mib
            said = f"{(failed or [_last_line(output)])[0][:200]}; {left_mib} MiB more in use after"
            passed = is_reported and went_on and left_mib <= LEFT_ON_DEVICE_MIB
            yield Finding(name=options[1] if options else "too large", passed=passed, said=said)

    def overhead(self) -> Iterator[Finding]:
        """Compare windows of gpuscale with a bare loop (ci/overhead.py)."""
        script = (str(REPOSITORY / "ci" / "overhead.py"), "--gpus", "1", "--runs", "3")
        case = f"{_case_file('resnet50')}::Resnet50"
        if self._size or not self.on_gpu:
            file = self._folder / "small.py"
            file.write_text(SMALL)
            case = f"{file}::Small"
        chosen = ("--device", self._device, "--case", case)
        code, output = self.command(*script, *chosen, "--format", "json")
        result = _document(output)["results"][0]
        ratio = result["ratio"]
        ends = "" if ratio["low"] is None else f" [{ratio['low']:.4f}, {ratio['high']:.4f}]"
        said = (
            f"measured / bare {ratio['value']:.4f}{ends}, limit {result['limit']:.3f}: "
            f"{result['verdict']} {result['reason']}; evidence {1000 * result['evidence_s']:.1f} "
            "ms a run"
        )
        yield Finding(name="overhead", passed={0: True, 3: None}.get(code, False), said=said)

    def _used_mib(self) -> int:
        if self.uuid is None:
            return 0
        # The driver removes a context a moment after its process ends.
        time.sleep(2)
        with open_smi() as smi, suppress(DeviceAbsentError):
            device = smi.find_device(self.uuid, self.address)
            return int(device.read().answers["memory_used_bytes"]) >> 20
        return 0


def _case_file(case: str) -> Path:
    return REPOSITORY / "bench_cases" / f"test_{case}.py"


def _document(output: str) -> dict[str, Any]:
    """Parse the JSON document in a command's output, ignoring any text before it."""
    begin = output.find("{")
    if begin < 0:
        raise GpuscaleError(_last_line(output))
    document: dict[str, Any]
    document, _ = json.JSONDecoder().raw_decode(output, begin)
    return document


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "ERROR" in line]
    return (errors or lines or ["it printed nothing"])[-1][:300]


def _samples_per_s(run: Run) -> float | None:
    return run.gpus * (run.batch_per_gpu or 0) / run.step_time_s if run.is_valid else None


def _works(runs: Sequence[Run]) -> bool:
    """True if the first run trained, even if the windows were unsteady."""
    failure = runs[0].failure if runs else None
    return bool(runs) and (failure is None or failure.kind == "unsteady")


def _outcome(runs: Sequence[Run], output: str) -> str:
    """Describe the first failure, or else the pace of the first run."""
    failed = [run.failure.message[:300] for run in runs if run.failure is not None]
    return failed[0] if failed else _pace(runs[0]) if runs else _last_line(output)


def _pace(run: Run) -> str:
    return f"{1000 * run.step_time_s:.2f} ms, {_samples_per_s(run):.1f} samples/s"


def _pace_ratio(runs: Sequence[Run]) -> float | None:
    """Time per step of rank 1 divided by that of rank 0; None if unknown."""
    paces_s = [rank.pace_s for rank in runs[0].ranks] if runs else []
    if len(paces_s) != 2 or not paces_s[0] or not paces_s[1]:
        return None
    return paces_s[1] / paces_s[0]


def _phase_error(run: Run) -> float | None:
    """Relative error of the sum of a window's phases, as a median over the windows."""
    errors = [
        abs(1 - sum(msgspec.structs.astuple(window.phases)) / window.busy_s[0])
        for window in run.windows
        if window.phases is not None
    ]
    # A pause of the host between two steps belongs to no phase.
    return statistics.median(errors) if errors else None


def check_telemetry(run: Run) -> Finding:
    """Compare a run's NVML counters with each other and with torch's peak memory."""
    name, problems = f"telemetry of {run.configuration.case}", []
    if not run.gpu_summaries:
        return Finding(name=name, passed=False, said=run.telemetry_absent or "none")
    (seen,), (rank,) = run.gpu_summaries, run.ranks
    needed = ("utilization_mean", "memory_used_peak_bytes", *POWER)
    lacks = [counter for counter in needed if counter not in seen.values]
    # One of the two devices of an MI250X measures the power of both.
    is_of_module = set(lacks) == {*POWER} and any("of a module" in text for text in seen.absent)
    if lacks and not is_of_module:
        said = f"no {', '.join(lacks)}: {'; '.join(seen.absent)}"
        return Finding(name=name, passed=False, said=said)
    utilization, used_bytes = (seen.values[counter] for counter in needed[:2])
    power = "power of the whole module alone"
    if not is_of_module:
        power_w, energy_j = (seen.values[counter] for counter in POWER)
        mean_w = energy_j / sum(window.time_s for window in run.windows)
        power = f"{power_w:.0f} W, {mean_w:.0f} W by energy"
        if abs(mean_w / power_w - 1) > LARGEST_POWER_ERROR:
            problems.append("energy and power differ")
    if rank.device_uuids != (seen.uuid,):
        problems.append(f"of GPU {seen.uuid}, and the rank was on {rank.device_uuids}")
    if utilization < SMALLEST_UTILIZATION:
        problems.append("the GPU was idle")
    if used_bytes < (rank.peak_memory_bytes or 0):
        problems.append("torch had more memory than was in use")
    said = (
        f"{utilization:.0%} busy, {power}, "
        f"{int(used_bytes) >> 20} MiB in use, {(rank.peak_memory_bytes or 0) >> 20} MiB by torch"
    )
    return Finding(name=name, passed=not problems, said="; ".join([said, *problems]))


def check_nccl_log(run: Run) -> Finding:
    """Check that the log of NCCL, which even a single rank writes, was read."""
    found = {name: text for node in run.nodes for name, text in node.connections.items()}
    absent = [node.absent["nccl"] for node in run.nodes if "nccl" in node.absent]
    said = [*(f"{name} {text}" for name, text in found.items()), *absent]
    passed = "channels" in found
    name = f"{_nccl(run.configuration.device)}'s own log"
    return Finding(name=name, passed=passed, said="; ".join(said) or "no log")


def _nccl(device: str) -> str:
    return "RCCL" if device == "rocm" else "NCCL"


def check_libraries(run: Run) -> Finding:
    """Check that the version of the loaded communication library is known."""
    found = {library.name: library.version for node in run.nodes for library in node.libraries}
    wanted = _nccl(run.configuration.device)
    absent = [node.absent["libraries"] for node in run.nodes if "libraries" in node.absent]
    said = [*(f"{name} {version or 'of unknown version'}" for name, version in found.items())]
    passed = found.get(wanted) is not None
    said += [*absent, *([] if passed else [f"no version of {wanted}"])]
    return Finding(name="loaded libraries", passed=passed, said="; ".join(said))


def check_packages(recorded: Mapping[str, str]) -> Finding:
    """Compare the recorded packages with those of this interpreter, which has trained."""
    found = {normalised(each.name): each.version for each in metadata.distributions()}
    found.pop("gpuscale", None)
    differ = sorted(
        name
        for name in {*found, *recorded}
        if not recorded.get(name, "none").startswith(found.get(name, "not installed"))
    )
    said = f"torch {recorded.get('torch', 'unknown')} and {max(0, len(recorded) - 1)} more"
    said += f"; wrong or missing: {', '.join(differ)}" if differ else "; all versions agree"
    return Finding(name="packages", passed=not differ and "torch" in recorded, said=said)


def _nvidia_smi(field: str, gpu: str) -> str:
    query = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits", f"--id={gpu}"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


def _beside_nvidia_smi(gpu: dict[str, Any]) -> Finding:
    """Compare the properties of a GPU that NVML reports with those that nvidia-smi prints."""
    answers = gpu["reading"]["answers"]
    pairs = {
        "name": gpu["name"],
        "enforced.power.limit": answers.get("power_limit_w"),
        "pcie.link.gen.max": answers.get("pcie_max_generation"),
        "pcie.link.width.max": answers.get("pcie_max_width"),
    }
    theirs = {field: _nvidia_smi(field, gpu["uuid"]) for field in pairs}
    differ = [
        f"{field}: {ours} beside {theirs[field]}"
        for field, ours in pairs.items()
        if not _is_same(ours, theirs[field])
    ]
    said = "; ".join(differ) or f"the same: {', '.join(pairs)}"
    return Finding(
        name=f"NVML beside nvidia-smi, GPU {gpu['number']}", passed=not differ, said=said
    )


def _is_same(ours: str | float | None, theirs: str) -> bool:
    """True if nvidia-smi prints the same value; it prints unknown values in brackets."""
    if ours is None:
        return theirs.startswith("[")
    if isinstance(ours, str):
        return ours == theirs
    try:
        return float(theirs) == ours
    except ValueError:
        return False


def main() -> int:
    """Run the selected checks; return 0 if nothing failed, else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    text = "(default: what torch was built for)"
    parser.add_argument("--device", choices=DEVICES, help=text)
    parser.add_argument("--size", help="the size of the cases, such as smoke")
    parser.add_argument("--out", type=Path, default=Path(".gpuscale/gpu-check"), metavar="DIR")
    text = "these checks alone, by their methods' names; the others stay in the report"
    parser.add_argument("--only", metavar="CHECK,CHECK,…", help=text)
    text = "the checks that the report of this GPU lacks"
    parser.add_argument("--resume", action="store_true", help=text)
    options = parser.parse_args()
    out = options.out.absolute()
    work = out / time.strftime("%Y%m%dT%H%M%S")
    work.mkdir(parents=True)
    device = options.device
    if device is None:
        _, output = Checks("cpu", work).command("-c", DEVICE)
        device = "rocm" if output.split()[-1:] == ["rocm"] else "cuda"
    every = Checks(device, work, size=options.size)
    wanted = every.all()
    if options.only and (unknown := set(options.only.split(",")) - set(wanted)):
        parser.error(
            f"--only: no check {', '.join(sorted(unknown))}; there are {', '.join(wanted)}"
        )
    try:
        about = every.about()
    except GpuscaleError as error:
        print(error)  # noqa: T201 - there is nothing to report on
        return 1
    earlier = earlier_report(out, about) if options.only or options.resume else None
    report = earlier or Report(about=about)
    if options.only:
        wanted = {name: wanted[name] for name in options.only.split(",")}
    if options.resume:
        done = {name for name, made in report.checks.items() if made.is_over}
        wanted = {name: check for name, check in wanted.items() if name not in done}
    all_well = make_checks(report, wanted, out)
    print(f"report: {out / 'report.md'}")  # noqa: T201 - its one result
    return 0 if all_well else 1


if __name__ == "__main__":
    sys.exit(main())
