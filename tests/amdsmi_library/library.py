"""Builds the AMD SMI library of the tests from the binding's own list of functions and structures.

A test describes its GPUs by the functions that they answer: for each, the fields that are known of
its structure, or the error. A field with two numbers grows by the second one at each call.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parent / "fake_amdsmi.c"
Answers = Mapping[str, Mapping[str, Any] | int]
"""For each function the known fields of its answer, or the code of its error."""

_WRITTEN_IN_C = re.findall(r"^int (amdsmi_\w+)\(", SOURCE.read_text(), re.MULTILINE)

# What the binding says of its functions, asked in a process of its own on a library of empty stubs:
# where in the arguments the answer is, its size, and the place and size of each of its fields.
_LAYOUTS = """
import ctypes, json
from amdsmi import amdsmi_interface as binding

def is_text(kind):
    return kind is ctypes.c_char or getattr(kind, "_type_", None) is ctypes.c_char

def fields(kind, offset, path):
    found = {path: [offset, 0 if is_text(kind) else ctypes.sizeof(kind)]}
    for name, part, *_ in getattr(kind, "_fields_", ()):
        at = offset + getattr(kind, name).offset
        found |= fields(part, at, f"{path}.{name}" if path else name)
    if hasattr(kind, "_length_") and not is_text(kind):
        for n in range(kind._length_):
            found |= fields(kind._type_, offset + n * ctypes.sizeof(kind._type_), f"{path}.{n}")
    return found

layouts = {}
for name, function in vars(binding.amdsmi_wrapper).items():
    if name.startswith("amdsmi_g") and hasattr(function, "argtypes"):
        for place, kind in list(enumerate(function.argtypes))[1:]:
            if issubclass(kind, ctypes._Pointer):
                layouts[name] = [place, ctypes.sizeof(kind._type_), fields(kind._type_, 0, "")]
                break
print(json.dumps(layouts))
"""
Layouts = dict[str, tuple[int, int, dict[str, list[int]]]]


def build(folder: Path) -> tuple[Path, Layouts]:
    """A folder with `lib/libamd_smi.so` in it, as `$ROCM_PATH` is, and what its functions answer.

    Skips the test where the binding or a compiler is missing.
    """
    found, compiler = find_spec("amdsmi"), shutil.which("cc")
    if found is None or found.origin is None:
        pytest.skip("the Python binding of AMD SMI is not installed (pip install amdsmi)")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build the AMD SMI library of the test with")
    wrapper = Path(found.origin).with_name("amdsmi_wrapper.py").read_text(encoding="utf-8")
    names = {*re.findall(r"_libraries\['libamd_smi.so'\]\.(\w+)", wrapper)}
    (folder / "lib").mkdir()
    library = folder / "lib" / "libamd_smi.so"

    def compiled(stubs: Mapping[str, str]) -> None:
        (folder / "stubs.h").write_text("\n".join(stubs[name] for name in sorted(stubs)))
        command = [compiler, "-shared", "-fPIC", "-Wall", "-I", str(folder)]
        subprocess.run([*command, "-o", str(library), str(SOURCE)], check=True)

    stubs = {name: f"int {name}(void) {{ return 2; }}" for name in names - {*_WRITTEN_IN_C}}
    compiled(stubs)
    command = [sys.executable, "-c", _LAYOUTS]
    answer = subprocess.run(
        command,
        env={**os.environ, "ROCM_PATH": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    layouts: Layouts = json.loads(answer.stdout)
    # Its first pointer is the length of the text.
    layouts["amdsmi_get_gpu_device_uuid"][2][""][1] = 0
    for name in {*stubs} & {*layouts}:
        place, size, fields = layouts[name]
        # Unknown numbers have all bits set; texts end.
        fill = 0 if any(not size for _, size in fields.values()) else 0xFF
        stubs[name] = f"ANSWER_{place}({name}, {fill}, {size if fields[''][1] else 0})"
    compiled(stubs)
    return folder, layouts


def write_fleet(path: Path, layouts: Layouts, fleet: Sequence[Answers]) -> Path:
    """The table that the library answers from."""
    rows = []
    for device, answers in enumerate(fleet):
        for function, known in answers.items():
            if isinstance(known, int):
                rows.append(f"{device} {function} error {known}")
                continue
            for field, value in known.items():
                offset, size = layouts[function][2][field]
                first, step = value if isinstance(value, tuple) else (value, 0)
                rows.append(
                    f"{device} {function} {offset} {size} {first}" + f" {step}" * bool(size)
                )
    path.write_text("\n".join(rows) + "\n")
    return path


def mi300x(bus: int, **others: Any) -> dict[str, Any]:
    """The answers of an MI300X in good health at a PCI bus."""
    return {
        "amdsmi_get_gpu_device_bdf": {"as_uint": bus << 8},
        "amdsmi_get_gpu_device_uuid": {"": f"{bus:02x}ff74a1-0000-1000-80aa-000000000000"},
        "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI300X", "device_id": 0x74A1},
        "amdsmi_get_gpu_driver_info": {"driver_version": "6.12.12"},
        "amdsmi_get_gpu_compute_partition": {"": "SPX"},
        "amdsmi_get_gpu_memory_partition": {"": "NPS1"},
        "amdsmi_get_gpu_activity": {"gfx_activity": 90},
        "amdsmi_get_gpu_memory_usage": {"": 5 << 30},
        "amdsmi_get_power_info": {"current_socket_power": 620},
        "amdsmi_get_energy_count": {"": (10**9, 10**6)},
        "amdsmi_get_clock_info": {"clk": 2100, "max_clk": 2100},
        "amdsmi_get_temp_metric": {"": 65},
        "amdsmi_get_pcie_info": {
            "pcie_metric.pcie_width": 16,
            "pcie_metric.pcie_speed": 32000,
            "pcie_metric.pcie_replay_count": 3,
            "pcie_static.max_pcie_width": 16,
            "pcie_static.max_pcie_speed": 32000,
        },
        "amdsmi_get_power_cap_info": {"power_cap": 750_000_000},
        "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 0, "uncorrectable_count": 0},
        "amdsmi_gpu_xgmi_error_status": {"": 0},
        # Seven links to other GPUs, and one that is not there.
        "amdsmi_get_gpu_xgmi_link_status": {
            "total_links": 8,
            **{f"status.{n}": 1 for n in range(7)},
            "status.7": 2,
        },
        "amdsmi_get_gpu_metrics_info": {
            "accumulation_counter": (1000, 100),
            **{
                f"{name}_residency_acc": 5
                for name in ("prochot", "socket_thm", "vr_thm", "hbm_thm")
            },
            "ppt_residency_acc": (100, 10),
        },
        "amdsmi_get_gpu_process_list": {"": 0},
        **others,
    }


def mi250x(bus: int, **others: Any) -> dict[str, Any]:
    """The answers of the first of the two devices of an MI250X module, which measures both."""
    metrics = {"indep_throttle_status": 1 << 36, "temperature_hotspot": 60}
    return {
        **mi300x(bus),
        "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI250X", "device_id": 0x7408},
        "amdsmi_get_gpu_compute_partition": 2,
        "amdsmi_get_gpu_memory_partition": 2,
        "amdsmi_get_power_info": {"average_socket_power": 500, "current_socket_power": 0xFFFF},
        "amdsmi_get_power_cap_info": {"power_cap": 560_000_000},
        "amdsmi_get_gpu_metrics_info": metrics,
        "amdsmi_get_gpu_xgmi_link_status": 2,
        "amdsmi_get_gpu_pci_replay_counter": {"": (4, 1)},
        **others,
    }
