"""Tables of all counters of GPUs and network ports: how gpuscale reads, checks and shows them.

InfiniBand's `counters` are documented in the kernel's ABI/stable/sysfs-class-infiniband and stop at
their maximum; `hw_counters` come from the mlx5 driver, Slingshot's counters from HPE's cxi driver.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec


class CounterQuantity(msgspec.Struct, frozen=True):
    """Unit and inclusive bounds of a counter's values, and whether they are whole numbers."""

    what: str
    unit: str
    low: float
    high: float
    whole: bool = False


SHARE = CounterQuantity("a share of time", "0 to 1", 0, 1)
BYTES = CounterQuantity("a whole number of bytes", "bytes", 0, 2**60, whole=True)
WATTS = CounterQuantity("a power in watts", "W", 0, 1e6)
JOULES = CounterQuantity("an energy in joules", "J", 0, 1e15)
MHZ = CounterQuantity("a clock in MHz", "MHz", 0, 1e6)
CELSIUS = CounterQuantity("a temperature in °C", "°C", -273.15, 1000)
COUNT = CounterQuantity("a whole number", "", 0, 1e9, whole=True)
ERRORS = CounterQuantity("a whole number", "", 0, 2**64, whole=True)


class Query(msgspec.Struct, frozen=True):
    """A call that reads a counter through the Python bindings of NVML or AMD SMI."""

    call: str
    """Name of an NVML or AMD SMI function, or of a field ID for nvmlDeviceGetFieldValues."""
    arguments: tuple[str, ...] = ()
    """Names of the binding's constants to pass to the function after the device."""
    member: str | None = None
    """Dotted path to the number within the answer; None if the answer is the number itself."""
    take: Callable[[Any], Any] = lambda answer: answer
    """Function that extracts the number from AMD SMI's answer, or from its `member` if set."""
    divisor: int = 1
    """Number by which the driver's value is divided to convert it to gpuscale's unit."""


class Field(msgspec.Struct, frozen=True):
    """A GPU counter: how it is read, summarised over a run, and shown."""

    name: str
    """Name of the counter in the records of a run."""
    moment: str
    """Key under which a `Reading` stores the driver's answer."""
    label: str
    """Name shown to people; counters with the same label share a line of output."""
    quantity: CounterQuantity
    when: Literal["windows", "load", "run"]
    """Time at which the counter is read. `windows`: at each tick inside timed windows. `load`: once
    a second from the start of the first window to the end of the last. `run`: once a second from
    warm-up to the end of the run."""
    reduce: Literal["mean", "max", "min", "increase", "shares"]
    queries: tuple[Query, ...] = ()
    """Queries of NVML and of AMD SMI, newest first. A vendor has none if a method of its device
    class reads the counter, or if there is no such counter."""
    take: Callable[[Any], float | None] = lambda answer: answer
    """Function that extracts the number from an answer that is not a number itself."""
    meaning: str = ""
    """Explanation in docs/format.md; empty if the name is clear enough."""
    shown: str = "{}"
    """Format string for number and unit in `gpuscale doctor`."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The driver's answers about one device at one time, each under the key in `Field.moment`."""

    answers: dict[str, Any] = {}
    """Answer for each key: a number, active clock event reasons, or whether each link is active."""
    absent: dict[str, str] = {}
    """Reason that the driver gave for each missing answer, under the key of that answer."""

    def __contains__(self, moment: str) -> bool:
        return moment in self.answers or moment in self.absent


_GENERATIONS = {2500: 1, 5000: 2, 8000: 3, 16000: 4, 32000: 5, 64000: 6}
"""PCIe generation for each transfer rate in megatransfers per second."""


# The formatter would break up the rows of the table.
# fmt: off
FIELDS = (
    # name, moment, label, quantity, when it is read, how it is reduced to one number
    Field("utilization_mean", "utilization", "utilization", SHARE, "windows", "mean",
          (Query("nvmlDeviceGetUtilizationRates", member="gpu", divisor=100),
           Query("amdsmi_get_gpu_activity", member="gfx_activity", divisor=100)),
          meaning="share of time with a kernel running"),
    # Version 2 excludes memory that the driver reserves (up to about 1 GiB), as nvidia-smi does;
    # drivers before R510 have only version 1, which includes that memory.
    Field("memory_used_peak_bytes", "memory_used_bytes", "memory", BYTES, "windows", "max",
          (Query("nvmlDeviceGetMemoryInfo", ("nvmlMemory_v2",), member="used"),
           Query("nvmlDeviceGetMemoryInfo", member="used"),
           Query("amdsmi_get_gpu_memory_usage", ("AmdSmiMemoryType.VRAM",))), shown="{} in use",
          meaning="memory allocated by all processes, also of other jobs"),
    # From Ampere on, the older call returns the mean over the last second, most of which may
    # precede the sample's window; the values in the driver's buffer are smoothed as well.
    Field("power_mean_w", "power_w", "power", WATTS, "windows", "mean",
          (Query("NVML_FI_DEV_POWER_INSTANT", divisor=1000),
           Query("nvmlDeviceGetPowerUsage", divisor=1000),
           # MI300 and later GPUs, then earlier ones.
           Query("amdsmi_get_power_info", member="current_socket_power"),
           Query("amdsmi_get_power_info", member="average_socket_power"))),
    Field("energy_j", "energy_j", "energy", JOULES, "windows", "increase",
          (Query("nvmlDeviceGetTotalEnergyConsumption", divisor=1000),
           Query("amdsmi_get_energy_count", divisor=10**6,
                 take=lambda count: count["energy_accumulator"] * count["counter_resolution"])),
          shown="counted by the device",
          meaning="sum over all windows, from the device's own counter"),
    Field("sm_clock_mean_mhz", "sm_clock_mhz", "SM clock", MHZ, "windows", "mean",
          (Query("nvmlDeviceGetClockInfo", ("NVML_CLOCK_SM",)),
           Query("amdsmi_get_clock_info", ("AmdSmiClkType.GFX",), member="clk"))),
    Field("memory_clock_mean_mhz", "memory_clock_mhz", "memory clock", MHZ, "windows", "mean",
          (Query("nvmlDeviceGetClockInfo", ("NVML_CLOCK_MEM",)),
           Query("amdsmi_get_clock_info", ("AmdSmiClkType.MEM",), member="clk"))),
    Field("temperature_max_c", "temperature_c", "temperature", CELSIUS, "windows", "max",
          (Query("nvmlDeviceGetTemperatureV", ("NVML_TEMPERATURE_GPU",)),
           Query("nvmlDeviceGetTemperature", ("NVML_TEMPERATURE_GPU",)),
           Query("amdsmi_get_temp_metric",
                 ("AmdSmiTemperatureType.HOTSPOT", "AmdSmiTemperatureMetric.CURRENT")))),
    Field("clock_event_reasons", "clock_event_reasons", "clock events", SHARE, "windows", "shares",
          (Query("nvmlDeviceGetCurrentClocksEventReasons"),
           Query("nvmlDeviceGetCurrentClocksThrottleReasons"))),
    Field("pcie_generation", "pcie_generation", "PCIe", COUNT, "load", "min",
          (Query("nvmlDeviceGetCurrPcieLinkGeneration"),
           Query("amdsmi_get_pcie_info", member="pcie_metric.pcie_speed", take=_GENERATIONS.get)),
          shown="generation {}",
          meaning="lowest from the start of the first window to the end of the last"),
    Field("pcie_max_generation", "pcie_max_generation", "PCIe", COUNT, "load", "max",
          (Query("nvmlDeviceGetMaxPcieLinkGeneration"),
           Query("amdsmi_get_pcie_info", member="pcie_static.max_pcie_speed",
                 take=_GENERATIONS.get)), shown="at most {} under load",
          meaning="highest that this slot allows"),
    Field("pcie_width", "pcie_width", "PCIe", COUNT, "load", "min",
          (Query("nvmlDeviceGetCurrPcieLinkWidth"),
           Query("amdsmi_get_pcie_info", member="pcie_metric.pcie_width")), shown="width x{}",
          meaning="lowest number of lanes in the same time"),
    Field("pcie_max_width", "pcie_max_width", "PCIe", COUNT, "load", "max",
          (Query("nvmlDeviceGetMaxPcieLinkWidth"),
           Query("amdsmi_get_pcie_info", member="pcie_static.max_pcie_width")), shown="at most x{}",
          meaning="highest number of lanes that this slot allows"),
    Field("pcie_replays", "pcie_replays", "PCIe replays", ERRORS, "run", "increase",
          (Query("nvmlDeviceGetPcieReplayCounter"),
           Query("amdsmi_get_pcie_info", member="pcie_metric.pcie_replay_count"),
           Query("amdsmi_get_gpu_pci_replay_counter")),
          meaning="new replays, from warm-up to the end of the run"),
    Field("power_limit_w", "power_limit_w", "power limit", WATTS, "load", "min",
          (Query("nvmlDeviceGetEnforcedPowerLimit", divisor=1000),
           Query("amdsmi_get_power_cap_info", member="power_cap", divisor=10**6)),
          meaning="lowest from the start of the first window to the end of the last"),
    *(Field(f"{link}_active_min", f"{link}_active", label, COUNT, "run", "min", take=sum,
            meaning="smallest number of links active during the run")
      for link, label in (("nvlink", "NVLink"), ("xgmi", "XGMI"))),
    Field("nvlink_errors", "nvlink_errors", "NVLink errors", ERRORS, "run", "increase",
          meaning="new errors on all links, from warm-up to the end of the run, as below"),
    Field("xgmi_errors", "xgmi_errors", "XGMI errors", ERRORS, "run", "increase",
          meaning="number of checks, one a second, that found new errors"),
    Field("ecc_corrected", "ecc_corrected", "ECC errors", ERRORS, "run", "increase",
          (Query("nvmlDeviceGetTotalEccErrors",
                 ("NVML_MEMORY_ERROR_TYPE_CORRECTED", "NVML_VOLATILE_ECC")),
           Query("amdsmi_get_gpu_total_ecc_count", member="correctable_count")),
          shown="{} corrected", meaning="new memory errors that ECC corrected"),
    Field("ecc_uncorrected", "ecc_uncorrected", "ECC errors", ERRORS, "run", "increase",
          (Query("nvmlDeviceGetTotalEccErrors",
                 ("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC")),
           Query("amdsmi_get_gpu_total_ecc_count", member="uncorrectable_count")),
          shown="{} not, since the last reset",
          meaning="new memory errors that ECC could not correct"),
)

_CLOCK_EVENTS = (
    "gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost",
    "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown",
    "display_clock_setting", "board_limit", "reliability",
)
"""Names of the clock event reasons, in the order of the bits in NVML's mask."""
# fmt: on

NUMBERS: Mapping[str, Field] = {field.name: field for field in FIELDS if field.reduce != "shares"}
"""Counters that are reduced to a single number, by name: possible keys of `GpuSummary.values`."""

MOMENTS: Mapping[str, Field] = {field.moment: field for field in FIELDS}
"""Counters by the key under which a `Reading` stores their answers."""

_FOLDS: Mapping[str, Callable[[list[float]], float]] = {
    "mean": lambda numbers: math.fsum(numbers) / len(numbers),
    "max": max,
    "min": min,
    "increase": sum,
}


def fold(name: str, numbers: Iterable[float | None]) -> float | None:
    """Reduce values of counter `name` to one, as `Field.reduce` says; None if all are unknown."""
    known = [number for number in numbers if number is not None]
    return _FOLDS[NUMBERS[name].reduce](known) if known else None


def values_problem(values: Mapping[str, float]) -> str | None:
    """Return a message about the first unknown counter or invalid number; None if all are valid."""
    for name, value in values.items():
        if name not in NUMBERS:
            return f"values: unknown counter {name[:60]!r}; known are {', '.join(NUMBERS)}"
        quantity = NUMBERS[name].quantity
        if not quantity.low <= value <= quantity.high or (quantity.whole and value % 1):
            expected = f"{quantity.what} between {quantity.low:.12g} and {quantity.high:.12g}"
            return f"values.{name}: expected {expected}, found {value:.12g}"
    return None


def clock_events(bits: int) -> tuple[str, ...]:
    """Return the clock event reasons in NVML's bit mask; an unknown one is called `reason_0x…`."""
    return tuple(
        _CLOCK_EVENTS[bit] if bit < len(_CLOCK_EVENTS) else f"reason_{1 << bit:#x}"
        for bit in range(bits.bit_length())
        if bits >> bit & 1
    )


PortKind = Literal["infiniband", "roce", "slingshot", "ethernet", "tcp"]
_IB: PortKind = "infiniband"
_CXI = "device/telemetry"
MOST_GROWTH = 2**60
"""Largest plausible growth of a counter in a run; larger growth is treated as unknown."""


class PortCounter(msgspec.Struct, frozen=True):
    """A counter of errors, waits or other events that cost time at a network port."""

    kind: PortKind
    """Kind of port that has the counter; RoCE ports also have InfiniBand's counters."""
    folder: str
    """Folder of the counter's file, relative to the port's folder; empty if it is that folder."""
    name: str
    words: str
    bits: int
    least: int
    """Smallest growth in a run that is reported; healthy networks may show less."""

    def growth(self, before: int | str, after: int | str) -> tuple[int, bool] | str:
        """Return (growth, flag), or a text that says why the growth is unknown.

        The flag is True if the growth is only a lower bound, because the counter was reset or
        reached its maximum. A failed reading is given as a text with the reason.
        """
        if isinstance(before, str) or isinstance(after, str):
            return before if isinstance(before, str) else str(after)
        # Some drivers have wider counters than the specification.
        span = 1 << (self.bits if max(before, after) < 1 << self.bits else 64)
        stops, at_maximum = self.folder == "counters", after == span - 1
        if stops and at_maximum and before == after:
            return "at its maximum"
        grown_by, is_floor = after - before, stops and at_maximum
        if after < before:
            is_floor = stops or before < span // 2 or after >= span // 2
            grown_by = after if is_floor else after + span - before
        return (grown_by, is_floor) if grown_by <= MOST_GROWTH else "not plausible"


PORT_COUNTERS = (
    PortCounter(_IB, "counters", "symbol_error", "symbol errors", 16, 10),
    PortCounter(_IB, "counters", "link_error_recovery", "link recoveries", 8, 1),
    PortCounter(_IB, "counters", "link_downed", "link downs", 8, 1),
    PortCounter(_IB, "counters", "port_rcv_errors", "receive errors", 16, 10),
    PortCounter(_IB, "counters", "port_xmit_discards", "discarded packets", 16, 10),
    PortCounter(_IB, "counters", "local_link_integrity_errors", "link integrity errors", 4, 1),
    PortCounter(_IB, "counters", "excessive_buffer_overrun_errors", "buffer overruns", 4, 1),
    PortCounter(_IB, "counters", "port_xmit_wait", "ticks of waiting", 32, 10**6),
    PortCounter(_IB, "hw_counters", "out_of_sequence", "packets out of sequence", 32, 10),
    PortCounter(_IB, "hw_counters", "packet_seq_err", "sequence errors", 32, 10),
    PortCounter(_IB, "hw_counters", "local_ack_timeout_err", "acknowledgement timeouts", 32, 1),
    PortCounter(_IB, "hw_counters", "roce_adp_retrans", "adaptive retransmissions", 32, 10),
    PortCounter(_IB, "hw_counters", "rnr_nak_retry_err", "receiver-not-ready", 32, 10),
    PortCounter(_IB, "hw_counters", "rp_cnp_handled", "congestion slowdowns", 64, 100),
    PortCounter(_IB, "hw_counters", "np_cnp_sent", "congestion notifications", 64, 100),
    PortCounter("slingshot", _CXI, "hni_pcs_uncorrected_cw", "uncorrected codewords", 56, 10),
    PortCounter("slingshot", _CXI, "hni_llr_tx_replay_event", "replays sent", 56, 10),
    PortCounter("slingshot", _CXI, "hni_llr_rx_replay_event", "replays received", 56, 10),
    PortCounter("slingshot", _CXI, "pct_spt_timeouts", "packet timeouts", 56, 1),
    PortCounter("slingshot", _CXI, "pct_sct_timeouts", "response timeouts", 56, 1),
    PortCounter("slingshot", _CXI, "pct_retry_srb_requests", "retried requests", 56, 1),
    PortCounter("slingshot", _CXI, "pct_no_trs_nacks", "refusals by targets", 56, 10),
    PortCounter("slingshot", _CXI, "hni_rx_paused_0", "paused cycles, in", 56, 10**6),
    PortCounter("slingshot", _CXI, "hni_tx_paused_0", "paused cycles, out", 56, 10**6),
    PortCounter("ethernet", "", "carrier_changes", "carrier changes", 32, 1),
    PortCounter("ethernet", "statistics", "rx_errors", "receive errors", 64, 10),
    PortCounter("ethernet", "statistics", "tx_errors", "send errors", 64, 10),
    PortCounter("ethernet", "statistics", "rx_dropped", "packets dropped on arrival", 64, 100),
    PortCounter("ethernet", "statistics", "tx_dropped", "packets dropped on sending", 64, 100),
    PortCounter("tcp", "", "RetransSegs", "retransmissions", 64, 100),
    PortCounter("tcp", "", "TCPTimeouts", "timeouts", 64, 10),
)
"""All counters; the most informative of each kind of port come first."""
PORT_COUNTERS_BY_NAME = {counter.name: counter for counter in PORT_COUNTERS}
