"""What is wrong with a device now that was not wrong with it in the baseline."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpuscale.diagnose.devices import Devices, DeviceState
from gpuscale.records import CauseKind
from gpuscale.telemetry.fields import NUMBERS
from gpuscale.units import whole_percent

_CLOCK_DROP = 0.03
"""Clocks of one GPU differ by less than this from night to night."""

_REASON_SHARE = 0.1
"""Of the samples, by which a reason must have become more frequent."""

_HARMLESS_REASONS = frozenset({"gpu_idle"})

_XIDS = {
    48: "double-bit ECC error",
    63: "row of memory remapped or retired",
    64: "row of memory could not be remapped or retired",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
}
"""The hardware's own faults, in NVIDIA's words; most other numbers a program can cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """One thing that is wrong with one device."""

    kind: CauseKind
    uuid: str
    host: str | None
    text: str
    """Such as `PCIe x8, x16 in the baseline`."""
    slowdown: float | None = None
    """By which fraction computing takes longer for it, as far as that follows from it."""

    @property
    def is_fault(self) -> bool:
        """Whether it is worth a word even where no lost time is seen in its place.

        Clocks also fall where a device has nothing to do, which is no cause but a consequence.
        """
        return self.kind is not CauseKind.CLOCKS


def symptoms_of(then: Devices, now: Devices) -> tuple[Symptom, ...]:
    """The symptoms of every device of now, device by device.

    A device is set beside itself in the baseline; one that the baseline does not know, beside
    the baseline's devices, and where those tell nothing, beside the other devices of now.
    """
    return tuple(symptom for uuid in now.summaries for symptom in _of_device(uuid, then, now))


def _of_device(uuid: str, then: Devices, now: Devices) -> Iterator[Symptom]:
    state, before = now.state(uuid), then.state(uuid)
    if state is None:
        return
    usual, where = before or then.usual(besides=uuid), "in the baseline"
    if usual is None:
        usual, where = now.usual(besides=uuid), "on the other GPUs"
    found = [
        *_clocks(state, usual, where),
        *_pcie(state, usual, where),
        *_nvlink(state, usual, before, where),
        *_errors(state, before),
    ]
    for kind, text, slowdown in found:
        yield Symptom(kind=kind, uuid=uuid, host=now.hosts.get(uuid), text=text, slowdown=slowdown)


_Found = Iterator[tuple[CauseKind, str, float | None]]


def _clocks(state: DeviceState, usual: DeviceState | None, where: str) -> _Found:
    if usual is None:
        return
    for counter in ("sm_clock_mean_mhz", "memory_clock_mean_mhz"):
        now, then = state.get(counter), usual.get(counter)
        if now and then and now < (1 - _CLOCK_DROP) * then:
            text = f"{NUMBERS[counter].label} {now:.0f} MHz, {then:.0f} MHz {where}"
            yield CauseKind.CLOCKS, text, then / now - 1
    limit, before_w = state.get("power_limit_w"), usual.get("power_limit_w")
    if limit and before_w and before_w > limit:
        yield CauseKind.CLOCKS, f"power limit {limit:.0f} W, {before_w:.0f} W {where}", None
    before = usual.clock_event_reasons or {}
    for name, share in (state.clock_event_reasons or {}).items():
        if name not in _HARMLESS_REASONS and share - before.get(name, 0.0) >= _REASON_SHARE:
            yield (
                CauseKind.CLOCKS,
                f"{name} in {whole_percent(share)} of the samples, in "
                f"{whole_percent(before.get(name, 0.0))} {where}{_heat(state)}",
                None,
            )


def _heat(state: DeviceState) -> str:
    heat_c = state.get("temperature_max_c")
    return "" if heat_c is None else f" (up to {heat_c:.0f} °C)"


def _pcie(state: DeviceState, usual: DeviceState | None, where: str) -> _Found:
    for prefix, counter in (("x", "width"), ("generation ", "generation")):
        now, most = state.get(f"pcie_{counter}"), state.get(f"pcie_max_{counter}")
        then = None if usual is None else usual.get(f"pcie_{counter}")
        if now is None:
            continue
        if then is not None and now < then:
            yield CauseKind.PCIE, f"PCIe {prefix}{now:.0f}, {prefix}{then:.0f} {where}", None
        elif then is None and most is not None and now < most:
            yield CauseKind.PCIE, f"PCIe {prefix}{now:.0f} of {prefix}{most:.0f}", None


def _nvlink(
    state: DeviceState, usual: DeviceState | None, before: DeviceState | None, where: str
) -> _Found:
    now = state.get("nvlink_active_min")
    then = None if usual is None else usual.get("nvlink_active_min")
    if now is not None and then is not None and now < then:
        yield CauseKind.NVLINK, f"{now:.0f} NVLink links active, {then:.0f} {where}", None
    errors = 0 if before is None else before.nvlink_errors
    if state.nvlink_errors > errors:
        yield CauseKind.NVLINK, f"{state.nvlink_errors:.0f} new NVLink errors", None


def _errors(state: DeviceState, before: DeviceState | None) -> _Found:
    count = state.get("ecc_uncorrected") or 0
    if count > (0 if before is None else before.get("ecc_uncorrected") or 0):
        errors = "memory error" if count == 1 else "memory errors"
        yield CauseKind.MEMORY_ERRORS, f"{count:.0f} {errors} that ECC could not correct", None
    known = () if before is None else before.xids
    for xid in state.xids:
        if xid not in known:
            meaning = f" ({_XIDS[xid]})" if xid in _XIDS else ""
            yield CauseKind.DRIVER_ERRORS, f"XID {xid}{meaning}", None
