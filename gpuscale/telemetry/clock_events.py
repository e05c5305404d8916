"""The names of NVML's clock event reasons, which are the bits of a number."""

_NAMES = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
    "board_limit",
    "reliability",
)
"""By bit; nvidia-smi shows most of them under `clocks_event_reasons.`"""


def reason_names(bits: int) -> tuple[str, ...]:
    """The reasons that hold; one without a name yet is `reason_0x800`."""
    return tuple(
        _NAMES[bit] if bit < len(_NAMES) else f"reason_{1 << bit:#x}"
        for bit in range(bits.bit_length())
        if bits >> bit & 1
    )
