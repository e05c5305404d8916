"""Counters of AMD's GPUs, by the real binding on the AMD SMI library of the tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from amdsmi_library.library import Answers, Layouts, mi250x, mi300x, write_fleet
from command_line import python
from sampling import sampled
from test_doctor import doctor

NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED = 2, 10, 34
FIRST, SECOND = "0000:c1:00.0", "0000:c6:00.0"
Fleet = Callable[..., None]


@pytest.fixture
def fleet(
    amd_library: tuple[Path, Layouts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Fleet:
    root, layouts = amd_library
    monkeypatch.setenv("ROCM_PATH", str(root))

    def put(*gpus: Answers) -> None:
        table = write_fleet(tmp_path / "fleet", layouts, gpus)
        monkeypatch.setenv("FAKE_AMDSMI", str(table))

    return put


def test_each_gpu_is_found_by_pci_address_and_read_by_itself(fleet: Fleet, tmp_path: Path) -> None:
    # AMD SMI's numbers and UUIDs are others than HIP's, and nothing else says which is which.
    other = mi300x(0xC1, amdsmi_get_gpu_activity={"gfx_activity": 50})
    fleet(other, mi300x(0xC6))
    addresses = {"hip-0": SECOND, "hip-1": FIRST.upper(), "hip-2": "0000:ff:00.0"}
    report = sampled(tmp_path / "samples", addresses, 12)
    one, two, unknown = report.gpu_summaries
    assert (one.name, one.absent) == ("AMD Instinct MI300X", ())
    expected: dict[str, Any] = {
        "utilization_mean": 0.9,
        "memory_used_peak_bytes": 5 << 30,
        "power_mean_w": 620,
        "sm_clock_mean_mhz": 2100,
        "temperature_max_c": 65,
        "pcie_generation": 5,
        "pcie_max_generation": 5,
        "pcie_width": 16,
        "pcie_max_width": 16,
        "pcie_replays": 0,
        "power_limit_w": 750,
        "xgmi_active_min": 7,
        "xgmi_errors": 0,
        "ecc_uncorrected": 0,
    }
    assert {name: one.values.get(name) for name in expected} == pytest.approx(expected)
    assert one.clock_event_reasons == {"ppt": 1.0}
    assert two.values["utilization_mean"] == 0.5
    assert unknown.absent == ("device: AMD SMI knows no device at 0000:ff:00.0",)
    # Nothing that only NVIDIA counts is named as missing.
    assert not any("nvlink" in name for name in one.values)


def test_the_power_of_half_a_module_is_named_as_not_measured(fleet: Fleet, tmp_path: Path) -> None:
    fleet(mi250x(0xC1))
    (gpu,) = sampled(tmp_path / "samples", {"a": FIRST}, 12).gpu_summaries
    why = "AMD SMI measures it for both devices of a module together"
    named = [f"{name}: {why}" for name in ("power", "energy", "power limit")]
    assert [reason for reason in gpu.absent if why in reason] == named
    assert gpu.values["utilization_mean"] == pytest.approx(0.9)
    # Before MI300 reasons are bits of the moment.
    assert gpu.clock_event_reasons == {"socket_thermal": 1.0}


def test_a_partition_has_none_of_the_whole_gpus_counters(fleet: Fleet, tmp_path: Path) -> None:
    modes = {"compute": "CPX", "memory": "NPS4"}
    answers = {f"amdsmi_get_gpu_{kind}_partition": {"": mode} for kind, mode in modes.items()}
    fleet(mi300x(0xC1, **answers), mi300x(0xC6))
    gpu, _ = sampled(tmp_path / "samples", {"a": FIRST, "b": SECOND}, 12).gpu_summaries
    why = "AMD SMI counts for the whole GPU, which other partitions (CPX/NPS4) share"
    assert (gpu.absent, gpu.values) == ((f"device: {why}",), {})
    code = "from gpuscale.measure.worker.gpus import known_to_driver; print(known_to_driver())"
    told = python("-c", code).stdout
    assert "'smi': 'AMD SMI', 'smi_index': 0, 'pci_address': '0000:c1:00.0'" in told
    assert "'partition': 'CPX/NPS4'" in told


def test_what_a_gpu_lacks_is_named_and_the_rest_is_read(fleet: Fleet, tmp_path: Path) -> None:
    fleet(
        mi300x(
            0xC1,
            amdsmi_get_gpu_total_ecc_count=NO_PERMISSION,
            amdsmi_get_temp_metric=NOT_SUPPORTED,
            amdsmi_get_gpu_activity={"umc_activity": 1},
            # As before MI300.
            amdsmi_get_power_info={"average_socket_power": 300, "current_socket_power": 0xFFFF},
        )
    )
    gpu, unknown = sampled(tmp_path / "samples", {"a": FIRST, "b": None}, 12).gpu_summaries
    assert "torch does not report the PCI address of b" in unknown.absent[0]
    absent = ("utilization: not reported", "temperature: Feature not supported")
    assert {*gpu.absent} == {*absent, "ECC errors: Permission Denied"}
    assert gpu.values["power_mean_w"] == 300


def test_energy_is_counted_in_units_of_the_gpu(fleet: Fleet) -> None:
    fleet(mi300x(0xC1))
    code = (
        "from gpuscale.measure.telemetry.device import open_smi\n"
        "with open_smi() as smi:\n    ((_, gpu),) = smi.all_devices()\n"
        "    print(gpu.read().answers['energy_j'])\n"
    )
    # A billion units of 15.25 microjoules, and a million more at each call.
    assert float(python("-c", code).stdout) == pytest.approx(15250, abs=100)


def test_new_errors_of_links_and_links_that_are_down_are_told(fleet: Fleet, tmp_path: Path) -> None:
    links = {"total_links": 8, **{f"status.{n}": 1 for n in range(6)}, "status.6": 0, "status.7": 2}
    faulty = {"amdsmi_gpu_xgmi_error_status": {"": 1}, "amdsmi_get_gpu_xgmi_link_status": links}
    fleet(mi300x(0xC1, **faulty), mi300x(0xC6))
    (gpu,) = sampled(tmp_path / "samples", {"a": FIRST}, 12).gpu_summaries
    assert gpu.values["xgmi_active_min"] == 6
    assert gpu.values["xgmi_errors"] >= 1
    code, text = doctor()
    assert "XGMI          6 of 7 links active (inactive: 6)" in text
    assert "GPU 0 has 6 of 7 XGMI links active, another AMD Instinct MI300X here has 7" in text
    assert code == 1


def test_doctor_shows_each_gpu_and_its_heat(fleet: Fleet) -> None:
    metrics = {"accumulation_counter": (1, 1), "socket_thm_residency_acc": (1, 1)}
    for name in ("prochot", "ppt", "vr_thm", "hbm_thm"):
        metrics[f"{name}_residency_acc"] = (0, 0)
    fleet(mi300x(0xC1, amdsmi_get_gpu_metrics_info=metrics))
    code, text = doctor()
    assert "driver    6.12.12" in text
    assert "GPU 0  AMD Instinct MI300X  c1ff74a1-0000-1000-80aa-000000000000" in text
    assert "power         620 W" in text
    assert "clock events  socket_thermal" in text
    assert "GPU 0 slows itself (socket_thermal" in text
    assert code == 1


def test_gpus_whose_addresses_are_withheld_are_unreachable(fleet: Fleet, tmp_path: Path) -> None:
    fleet(mi300x(0xC1, amdsmi_get_gpu_device_bdf=NO_PERMISSION))
    code, text = doctor()
    assert "cannot be reached: AMD SMI cannot list the GPUs: Permission Denied" in text
    assert "driver    of unknown version" in text
    assert code == 1
    said = sampled(tmp_path / "samples", {"a": FIRST}, 12).absent
    assert said == "AMD SMI cannot list the GPUs: Permission Denied"


def test_a_library_that_does_not_start_is_a_problem(fleet: Fleet) -> None:
    fleet(mi300x(0xC1))
    code, text = doctor(FAKE_AMDSMI_INIT=str(NO_PERMISSION))
    assert "driver    AMD SMI does not start: Permission Denied" in text
    assert code == 1
    code, text = doctor(FAKE_AMDSMI_INIT=str(DRIVER_NOT_LOADED))
    assert code == 0


@pytest.mark.parametrize(
    ("sabotage", "reason"),
    [
        ("", "libamd_smi.so not found in $ROCM_PATH/lib or by the loader"),
        ("sys.modules['amdsmi'] = None; ", "binding is not installed; pip install"),
    ],
)
def test_where_amds_driver_is_the_missing_part_is_named_and_nothing_is_printed(
    tmp_path: Path, amd_library: tuple[Path, Layouts], sabotage: str, reason: str
) -> None:
    code = (
        "import sys; from pathlib import Path; from gpuscale.measure.telemetry import device\n"
        f"{sabotage}device.AMD_DRIVER = Path('/')\n"
        "try:\n    device.open_smi().__enter__()\n"
        "except device.errors.DriverAbsentError as error:\n    sys.stderr.write(str(error))\n"
    )
    answer = python("-c", code, ROCM_PATH=str(tmp_path))
    assert reason in answer.stderr
    assert (answer.stdout, answer.stderr.count("\n")) == ("", 0)


def test_rocms_own_binding_comes_first(tmp_path: Path) -> None:
    own = tmp_path / "share" / "amd_smi" / "amdsmi"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("raise AttributeError('amdsmi_new: undefined symbol')")
    code = (
        "from gpuscale.measure.telemetry import amd\n"
        "try:\n    amd.start()\nexcept Exception as error:\n    print(error)\n"
    )
    said = python("-c", code, ROCM_PATH=str(tmp_path)).stdout
    assert said.startswith("AMD SMI's binding and library are of different releases: amdsmi_new: ")
