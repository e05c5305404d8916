"""The report of gpu_check.py, which is saved after each finding and can be extended later."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

# Images/s of one GPU in shipped baselines, by GPU model.
PUBLISHED = {"A100": "JUWELS Booster: resnet50 624 images/s (precision unknown)"}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a check."""

    name: str
    passed: bool | None
    """Whether the check passed; None if there is nothing to compare the result with."""
    said: str


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The device and software that are checked."""

    device: str
    software: str
    system: str
    uuid: str | None = None
    """UUID as CUDA reports it; None without a GPU."""
    major: int | None = None
    """Major version of the GPU's compute capability; None without a GPU, and on GPUs of AMD."""
    address: str | None = None
    """PCI address of a GPU of AMD, by which AMD SMI finds it."""


class Made(msgspec.Struct, kw_only=True):
    """A check that was started, and the findings so far."""

    findings: list[Finding] = []
    seconds: float = 0.0
    is_over: bool = False


class Report(msgspec.Struct, kw_only=True):
    """The report of all checks that were started."""

    about: About
    checks: dict[str, Made] = {}
    """Checks by name, in the order in which they were started."""

    def write(self, folder: Path) -> None:
        """Write the report as Markdown and JSON."""
        (folder / "report.md").write_text(markdown(self), encoding="utf-8")
        text = json.dumps(msgspec.to_builtins(self), indent=1, ensure_ascii=False)
        (folder / "report.json").write_text(text + "\n", encoding="utf-8")


def markdown(report: Report) -> str:
    """Render the report as Markdown."""
    marks = {True: "yes", False: "**no**", None: "–"}
    name = report.about.device
    published = [words for gpu, words in PUBLISHED.items() if gpu in name]
    minutes = sum(made.seconds for made in report.checks.values()) / 60
    lines = [
        f"## GPU check of {time.strftime('%Y-%m-%d')}: {name}",
        "",
        f"{report.about.software}, {report.about.system}; {minutes:.1f} minutes.",
        *(f"Published of this GPU: {words}." for words in published),
        "",
        "| check | passed | seen |",
        "|---|---|---|",
    ]
    for check, made in report.checks.items():
        for found in made.findings:
            said = " ".join(found.said.replace("|", "/").split())
            lines.append(f"| {found.name} | {marks[found.passed]} | {said} |")
        if not made.is_over:
            lines.append(f"| {check} | – | not over |")
    return "\n".join([*lines, ""])


def earlier_report(folder: Path, about: About) -> Report | None:
    """Read an earlier report; return None unless it is for the same GPU model and software."""
    try:
        found = msgspec.json.decode((folder / "report.json").read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError):
        return None
    there, here = found.about, about
    is_alike = (there.device, there.software) == (here.device, here.software)
    return Report(about=about, checks=found.checks) if is_alike else None


def findings_of(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Run a check, and yield its findings; an exception becomes a finding that did not pass."""
    try:
        yield from check()
    except Exception as error:
        # The other checks must still run.
        said = f"the check itself failed: {type(error).__name__}: {error}"
        yield Finding(name=name, passed=False, said=said)


def make_checks(
    report: Report, checks: Mapping[str, Callable[[], Iterator[Finding]]], folder: Path
) -> bool:
    """Run checks in turn, and save each finding at once; return True if nothing failed."""
    for name, check in checks.items():
        begun = time.monotonic()
        report.checks.pop(name, None)
        made = report.checks[name] = Made()
        report.write(folder)
        for finding in findings_of(name, check):
            made.findings.append(finding)
            made.seconds = time.monotonic() - begun
            report.write(folder)
            mark = {True: "ok", False: "FAILED", None: "--"}[finding.passed]
            print(f"{mark:6} {finding.name}: {finding.said}", flush=True)  # noqa: T201 - as it goes
        made.seconds, made.is_over = time.monotonic() - begun, True
        report.write(folder)
    every = (finding for made in report.checks.values() for finding in made.findings)
    return all(finding.passed is not False for finding in every)
