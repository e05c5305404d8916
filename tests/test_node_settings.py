"""Settings of a node, read from trees of files, and what a comparison says of them."""

from pathlib import Path
from uuid import UUID

import pytest
from builders import baseline, environment, measured
from builders.network_tree import write
from changing import replace
from statements import facts_of
from test_host_load import SLOWER, THEN

from gpuscale.judge.compare import compare
from gpuscale.judge.compare.notes import with_environment_changes
from gpuscale.judge.diagnose import diagnose
from gpuscale.judge.sides import sides_of
from gpuscale.measure.evidence.node import read_settings
from gpuscale.records import NodeEvidence, Run
from gpuscale.records.environment_diff import environment_changes, environment_text
from gpuscale.records.record import from_json, to_json
from gpuscale.reports.cause_words import evidence, whole_line

CPUS = "sys/devices/system/cpu"
TREE = {
    f"{CPUS}/cpufreq/policy0/scaling_governor": "performance",
    f"{CPUS}/cpufreq/policy1/scaling_governor": "performance",
    f"{CPUS}/cpufreq/boost": "1",
    f"{CPUS}/smt/control": "forceoff",
    "proc/cpuinfo": "processor\t: 0\nvendor_id\t: X\nmicrocode\t: 0xd000389\nflags\t: a",
    "proc/cmdline": "BOOT_IMAGE=/v root=/dev/sda1 token=s3cret iommu=pt amd_iommu=on pci=nommconf "
    "hugepagesz=1G nohz-full=2-63 quiet -- isolcpus=7",
    "proc/sys/kernel/numa_balancing": "1",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "sys/kernel/iommu_groups/0/type": "identity",
    "sys/kernel/iommu_groups/1/type": "DMA-FQ",
}
IN_TREE = {
    "governor": "performance",
    "frequency_boost": "1",
    "SMT": "forceoff",
    "microcode": "0xd000389",
    "kernel_options": "iommu=pt amd_iommu=on pci=nommconf hugepagesz=1G nohz-full=2-63",
    "transparent_hugepages": "madvise",
    "NUMA_balancing": "1",
    "IOMMU": "DMA-FQ, identity",
    "container_image": "none",
}


@pytest.fixture(autouse=True)
def outside_of_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        monkeypatch.delenv(name, raising=False)


def test_each_setting_is_read_and_no_option_that_may_be_a_secret(tmp_path: Path) -> None:
    write(tmp_path, *TREE.items())
    assert read_settings(tmp_path) == (IN_TREE, {})


def test_cpus_that_differ_are_counted(tmp_path: Path) -> None:
    write(tmp_path, *TREE.items(), (f"{CPUS}/cpufreq/policy2/scaling_governor", "powersave"))
    found, _ = read_settings(tmp_path)
    assert found["governor"] == "performance on 2, powersave on 1"


def test_a_machine_that_lacks_a_setting_has_nothing_to_tell(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/iommu_groups").mkdir(parents=True)
    # Another processor's: without a line for microcode.
    write(tmp_path, ("proc/cmdline", "ro quiet"), ("proc/cpuinfo", "cpu\t: POWER9"))
    settings = {"IOMMU": "off", "kernel_options": "none", "container_image": "none"}
    assert read_settings(tmp_path) == (settings, {})


def test_what_is_damaged_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    root = tmp_path
    write(root, *TREE.items())
    (root / "proc/cpuinfo").write_bytes(b"\xff\x00\xfe")
    (root / "proc/sys/kernel/numa_balancing").write_text("")
    (root / "sys/kernel/mm/transparent_hugepage/enabled").write_text("\x1b[31mwhat")
    (root / "proc/cmdline").unlink()
    for folder in (f"{CPUS}/cpufreq/policy1/scaling_governor", f"{CPUS}/smt/control"):
        (root / folder).unlink()
        (root / folder).mkdir()
    found, absent = read_settings(root)
    assert found.keys() == {"frequency_boost", "IOMMU", "container_image"}
    cpus = {"governor", "SMT", "NUMA_balancing"}
    assert absent.keys() == {"kernel_options", "transparent_hugepages"} | cpus
    assert absent["kernel_options"] == "No such file or directory"
    assert absent["SMT"] == "Is a directory"
    # Whatever was read, a file can hold it.
    node = from_json(NodeEvidence, to_json(NodeEvidence(host="n1", settings=found, absent=absent)))
    assert node.absent["transparent_hugepages"].startswith("unexpected content of enabled")


IMAGE_ID = "0b2f8c1e-6f0d-4c5c-9f6e-2b1f6f1c9a10"
SIF = b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + b"SIF_MAGIC\x0001\x0002\0"
ENROOT = "22 1 0:40 /{} / rw,nosuid - xfs /dev/sda rw\n23 22 0:5 / /proc rw - proc proc rw\n"


@pytest.mark.parametrize("variable", ["APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"])
def test_an_image_of_apptainer_is_named_with_its_own_id(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "/images/torch.sif")
    image = {"container_image": "/images/torch.sif"}
    assert read_settings(tmp_path)[0].items() >= image.items()
    (tmp_path / "images").mkdir()
    (tmp_path / "images/torch.sif").write_bytes(SIF + UUID(IMAGE_ID).bytes + bytes(32))
    found, _ = read_settings(tmp_path)
    assert found.items() >= {**image, "container_build": IMAGE_ID}.items()


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("home/u/.local/share/enroot/torch", "torch"),
        ("run/enroot/user-1/pyxis_4711.0", "pyxis"),
        ("run/enroot/user-1/pyxis_4711_torch", "pyxis_torch"),
        ("run/enroot/user-1/pyxis_torch", "pyxis_torch"),
    ],
)
def test_enroots_container_is_named_without_its_job(folder: str, name: str, tmp_path: Path) -> None:
    write(tmp_path, (".lock", ""), ("proc/self/mountinfo", ENROOT.format(folder)))
    found, _ = read_settings(tmp_path)
    assert found["container_image"] == name


def nodes(*governors: str, **others: str) -> list[NodeEvidence]:
    """Return a node for each governor: n1, n2, and so on."""
    return [
        NodeEvidence(host=f"n{number}", settings={"governor": governor, **others})
        for number, governor in enumerate(governors, start=1)
    ]


def test_a_setting_is_named_in_words_and_one_that_is_unknown_is_no_change() -> None:
    here = [environment()]

    def said(before: list[NodeEvidence], after: list[NodeEvidence]) -> list[str]:
        return [*map(environment_text, environment_changes(here, here, before, after))]

    quick = nodes(*["performance"] * 16, kernel_options="none")
    assert said(quick, quick) == said([], quick) == said(quick, nodes("performance")) == []
    passed_through = nodes(*["performance"] * 16, kernel_options="iommu=pt")
    assert said(quick, passed_through) == ["kernel options none → iommu=pt"]
    assert said(quick, [NodeEvidence(host="n1")]) == []


def on(nodes: list[NodeEvidence], runs: tuple[Run, ...]) -> tuple[Run, ...]:
    return tuple(replace(run, nodes=tuple(nodes)) for run in runs)


def test_a_comparison_notes_a_new_setting_and_a_loss_lists_it_among_changes() -> None:
    recorded, now = baseline(THEN), measured(SLOWER)
    runs = on(nodes("performance", "performance"), recorded.runs)
    places = {run.allocation or recorded.name: now.environment for run in runs}
    recorded = replace(recorded, runs=runs, environments=places)
    after = [replace(now, runs=on(nodes("performance", "powersave"), now.runs))]
    sides = sides_of(recorded, after)
    found = diagnose(sides, with_environment_changes(compare(recorded, after), sides))
    text = "governor performance → powersave on n2"
    (change,) = facts_of(found.notes, "environment_changed")["changes"]
    assert environment_text(change) == text
    causes = found.entries[-1].causes
    (cause,) = (cause for cause in causes if cause.code == "environment_changed")
    assert text in (whole_line(cause, "cuda") + "".join(evidence(cause)))
    # It is listed, and never said to be the reason for a share of the loss.
    assert cause.share is None
