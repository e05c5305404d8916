"""The packages of the interpreter that trains, which for a command may be another environment."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from builders import environment
from changing import replace
from commands import PRELUDE
from hosts import within_limit
from measuring import run_gpuscale
from test_run_command import QUICK

from gpuscale.measure.evidence.software import installed_packages, software_of
from gpuscale.records.environment_diff import package_changes
from gpuscale.store.results import read_results

# As the loader of libraries does it.
MAPPING = """
import mmap, sysconfig
with open(sysconfig.get_path("purelib") + "/torch/_C.so", "rb") as library:
    mapped = mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ)
"""


def install(folder: Path, name: str, version: str, origin: object = None) -> Path:
    """Write the metadata of a package as pip does, without code; return their folder."""
    metadata = folder / f"{name}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    if origin is not None:
        (metadata / "direct_url.json").write_text(json.dumps(origin))
    return metadata


def other_environment(folder: Path) -> Path:
    """Make a virtual environment with a torch in name only; return its folder of packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python3*/site-packages"))
    install(packages, "torch", "2.9.1")
    (packages / "torch").mkdir()
    told = "__version__ = '2.9.1+cu126'\ncuda: Optional[str] = '12.6'\nhip: str | None = None\n"
    (packages / "torch" / "version.py").write_text(told)
    (packages / "torch" / "_C.so").write_text("a library")
    return packages


def test_names_versions_local_tags_and_origins_are_read(tmp_path: Path) -> None:
    install(tmp_path, "Flash_Attn", "2.8.0+cu13")
    commit = {"vcs": "git", "commit_id": "0123456789abcdef"}
    told = {"url": "https://me:secret@host/x/apex.git?token=1", "vcs_info": commit}
    install(tmp_path, "apex", "0.1", told)
    mine = {"url": "file:///home/me/job-17/site", "dir_info": {"editable": True}}
    install(tmp_path, "site", "1.0", mine)
    install(tmp_path, "gpuscale", "0.1")
    assert installed_packages([tmp_path, tmp_path / "absent"]) == {
        "apex": "0.1 (https://host/x/apex.git@0123456789ab)",
        "flash-attn": "2.8.0+cu13",
        "site": "1.0 (editable, folder site)",
    }


def test_what_is_damaged_is_named_and_loses_nothing(tmp_path: Path) -> None:
    for number, content in enumerate(("{", "[]", '{"url": 1}', '{"url": "x", "vcs_info": 1}')):
        (install(tmp_path, f"odd{number}", "1.0") / "direct_url.json").write_text(content)
    install(tmp_path / "first", "twice", "1.0")
    install(tmp_path / "second", "twice", "2.0")
    (tmp_path / "-.dist-info").mkdir()
    (tmp_path / "loop-1.0.dist-info").symlink_to("loop-1.0.dist-info")
    found = installed_packages([tmp_path, tmp_path / "first", tmp_path / "second"])
    assert found["loop"] == "1.0"
    assert found["twice"] == "1.0, 2.0"
    odd = {found[f"odd{number}"] for number in range(4)}
    assert odd == {"1.0 (direct_url.json cannot be read)"}
    assert replace(environment(), packages=found).packages == found


def test_the_results_of_a_command_carry_the_software_of_its_own_environment(tmp_path: Path) -> None:
    packages = other_environment(tmp_path / "other")
    (tmp_path / "train.py").write_text(PRELUDE + MAPPING + "steps(range(10**6))\n")
    # By a name in a path that only the command has.
    command = ("sh", "-c", f"PATH={tmp_path}/other/bin:$PATH; cd . && python train.py")
    asked = ("--gpus", "1", "--batch", "4", *QUICK)
    into = ("--runs", "1", "--results", "r.jsonl")
    run_gpuscale(tmp_path, "run", *asked, *into, "--", *command).ended()
    found = read_results(tmp_path / "r.jsonl").environment
    assert (found.torch_version, found.cuda_version) == ("2.9.1+cu126", "12.6")
    assert found.packages["torch"] == "2.9.1"
    assert found.lightning_version is None
    assert found.packages_absent is None
    # The other environment has this interpreter, so its whole version is known.
    assert found.python_version == platform.python_version()
    before = (tmp_path / "r.jsonl").read_bytes()
    install(packages, "triton", "3.6")
    onto = ("--runs", "2", "--resume", "r.jsonl")
    resumed = run_gpuscale(tmp_path, "run", *asked, *onto, "--", *command)
    assert "another environment (triton: not installed → 3.6)" in resumed.output
    assert resumed.exit_code != 0
    assert (tmp_path / "r.jsonl").read_bytes() == before


def absent_of(process: int) -> str:
    return software_of([process]).software.packages_absent or ""


def test_an_interpreter_that_cannot_be_examined_is_named() -> None:
    found = software_of([])
    assert found.software.packages_absent == "no process of the command was left"
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert str(ended.pid) in absent_of(ended.pid)
    with subprocess.Popen(["sleep", "60"]) as shell:
        try:
            # Until it is the program that was asked for.
            assert within_limit(lambda: "sleep" in absent_of(shell.pid))
            assert "has loaded no library of a package" in absent_of(shell.pid)
        finally:
            shell.kill()
    # None of it is gpuscale's own.
    here = replace(environment(), torch_version="2.15", nccl_version="2.28")
    put = here.with_software_of(found.software)
    assert (put.torch_version, put.nccl_version, put.host) == (None, None, here.host)


def test_parts_of_the_stack_come_first_and_unknown_packages_are_no_change() -> None:
    here = environment()
    old = replace(here, packages={"torch": "2.14", "absl-py": "1", "apex": "0.1", "six": "1"})
    new = replace(here, packages={"torch": "2.15", "absl-py": "2", "triton": "3", "six": "1"})
    changes = [*package_changes([old], [new])]
    assert [change.name for change in changes] == ["torch", "triton", "apex", "absl-py"]
    assert [change.after for change in changes[:3]] == [("2.15",), ("3",), ("not installed",)]
    assert not [*package_changes([old, new], [new])]
    assert not [*package_changes([here], [new])]


@pytest.mark.parametrize("name", ["torch", "pytorch-triton", "nvidia-nccl-cu13", "NCCL loaded"])
def test_names_of_the_stack_are_recognised(name: str) -> None:
    old, new = (replace(environment(), packages={name: v, "a": v}) for v in ("1", "2"))
    first, _ = package_changes([old], [new])
    assert first.name == name


def process_in(root: Path, number: int, parent: int, words: str, *mapped: str) -> Path:
    """Write a process into a tree of files; as in a container, its own root is another folder."""
    place = root / "proc" / str(number)
    place.mkdir(parents=True)
    (place / "stat").write_text(f"{number} (a b) S {parent} 0 0")
    (place / "cmdline").write_text(words.replace(" ", "\0") + "\0")
    (place / "maps").write_text("".join(f"0-1 r-xp 0 0:0 7 {path}\n" for path in mapped))
    (place / "exe").symlink_to("/opt/venv/bin/python3.12")
    (place / "root").symlink_to(root / "container")
    return place


def test_a_container_is_looked_into_and_forks_of_loaders_are_not(tmp_path: Path) -> None:
    image = tmp_path / "container"
    site = "/opt/venv/lib/python3.12/site-packages"
    install(image / site.lstrip("/"), "torch", "2.12.0")
    own = "/home/me/.local/lib/python3.12/site-packages"
    install(image / own.lstrip("/"), "apex", "0.1")
    # Of the machine, not of the container.
    install(tmp_path / own.lstrip("/"), "wrong", "0.1")
    nccl = f"{site}/nvidia/libnccl.so.2"
    process_in(tmp_path, 2, 1, "torchrun train.py")
    process_in(tmp_path, 3, 2, "python train.py", f"{site}/torch/_C.so", nccl, f"{own}/apex.so")
    # A loader has loaded nothing of its own; should it be read, its libibverbs is found.
    process_in(tmp_path, 4, 3, "python train.py", "/usr/lib/libibverbs.so.1")
    found = software_of([2, 3, 4, 5], root=tmp_path)
    assert found.software.packages == {"apex": "0.1", "torch": "2.12.0"}
    assert (found.software.python_version, found.software.torch_version) == ("3.12", "2.12.0")
    assert [library.path for library in found.libraries] == [nccl]
    # A rank that may not be read leaves the others.
    (tmp_path / "proc" / "3" / "maps").unlink()
    absent = software_of([3], root=tmp_path).software.packages_absent
    assert absent == "process 3 cannot be read: No such file or directory"
