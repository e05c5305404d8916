"""The hardware of a baseline, and the comparison of GPU names and machines."""

import re
from collections.abc import Sequence

from msgspec.structs import replace

from gpuscale.base.errors import UsageError
from gpuscale.records import Environment, Hardware, Statement
from gpuscale.records.environment import UNKNOWN_HOST, UNRECORDED

_SPELLINGS = (
    (r"^\s*\d+\s*[X×]\s+", ""),
    # Power limit, clock and PCIe generation (`300W`, `1410 MHz`, `Gen4`) do not identify a model.
    (r"\b\d+\s*(?:W|WATTS?|[MG]HZ)\b|\bGEN\s*\d\b", ""),
    (r"\bMIG\s+(\d+)G\.(\d+)GB\b", r"MIG\1X\2"),
    (r"\b(\d+)\s*(?:GB|GIB|G)\b", r"\1GB"),
    (r"\bPCI-?E\d*\b", "PCIE"),
    (r"\b(SXM|HBM)\d*\b", r"\1"),
)
"""Regular expressions that unify the spelling of GPU names, each with its replacement."""
_FORMS = frozenset({"SXM", "PCIE", "NVL"})
_VARIANT = re.compile(rf"\d+GB|HBM|{'|'.join(sorted(_FORMS))}")
# Words that distinguish models of the same number: an RTX 3090 is not an RTX 3090 Ti.
_QUALIFIERS = frozenset({"TI", "SUPER", "ADA", "PRO", "MAX", "LAPTOP"})
_VENDOR = frozenset(
    {"NVIDIA", "TESLA", "GEFORCE", "QUADRO", "AMD", "INSTINCT", "RADEON", "GPU", "GPUS", "CORE"}
    | {"TENSOR", "GENERATION", "GRAPHICS"}
)


def same_gpu_model(one: str, other: str) -> bool:
    """True if two names can mean the same GPU: `A100` and `NVIDIA A100-SXM4-40GB` can.

    The model (`V100`, `RTX 3090 TI`, a MIG slice) must be the same. Form factor and memory (`SXM4`,
    `40GB`) must not conflict: the more specific name must include all that the other name states.
    Thus `H100` matches both `H100 PCIe` and `H100 80GB HBM3`, which do not match each other.
    """
    model, variant = _parsed(one)
    other_model, other_variant = _parsed(other)
    return model == other_model and (variant <= other_variant or other_variant <= variant)


def _parsed(name: str) -> tuple[frozenset[str], frozenset[str]]:
    text = name.upper()
    for spelling, plain in _SPELLINGS:
        text = re.sub(spelling, plain, text)
    words = frozenset(re.findall(r"[A-Z0-9]+", text)) - _VENDOR
    variant = frozenset(word for word in words if _VARIANT.fullmatch(word))
    numbered = frozenset(w for w in words - variant if w in _QUALIFIERS or re.search(r"\d", w))
    model = numbered or words - variant
    if "HBM" in variant:
        # Drivers name an `H100 SXM5` by its memory: `H100 80GB HBM3`.
        variant = variant - {"HBM"} | (variant & _FORMS or {"SXM"})
    return model, variant


def machine_mismatch(baseline: Hardware, environments: Sequence[Environment]) -> Statement | None:
    """Return the reason why results cannot be compared with the baseline; None if they can.

    Unknown properties do not count as different.
    """
    for environment in environments:
        if other := _other_machine(baseline, environment):
            return Statement.of("other_machine", now=other[0], before=other[1])
    names = [name for environment in environments for name in environment.gpu_names]
    for name in names[1:]:
        if not same_gpu_model(names[0], name):
            return Statement.of("mixed_machines", one=names[0], other=name)
    return None


def _other_machine(baseline: Hardware, environment: Environment) -> tuple[str, str] | None:
    """Return the names of differing hardware, current then baseline; None if nothing differs."""
    if environment.system != baseline.system:
        return environment.system or environment.hardware_label, baseline.system or baseline.device
    if environment.device != baseline.device:
        return environment.device, baseline.device
    if baseline.device == "cpu":
        now, then = environment.cpu_model, baseline.cpu_model
        names = [name.casefold().split() for name in (then, now) if name is not None]
        if len(names) == 2 and names[0] != names[1]:
            return str(now), str(then)
    elif baseline.gpu_name is not None:
        for name in environment.gpu_names:
            if not same_gpu_model(baseline.gpu_name, name):
                return name, baseline.gpu_name
    return None


def hardware_label(cluster: str, hardware: Hardware) -> str:
    """Describe the baseline's machine, such as `ARC4, 4× V100 per node`."""
    if hardware.system is not None:
        machine = hardware.system
    elif hardware.device == "cpu":
        machine = f"CPU ({hardware.cpu_model})" if hardware.cpu_model else "CPU"
    elif hardware.device == UNRECORDED:
        machine = ""
    elif hardware.gpu_name is None:
        machine = "GPUs of unknown model"
    elif hardware.gpus_per_node is None:
        machine = hardware.gpu_name
    else:
        machine = f"{hardware.gpus_per_node}× {hardware.gpu_name} per node"
    known = "" if cluster == UNKNOWN_HOST else cluster
    return ", ".join(filter(None, (known, machine)))


def common_hardware(environments: Sequence[Environment]) -> Hardware:
    """Return the hardware that all environments share; raise UsageError if it differs."""
    devices = {environment.device for environment in environments}
    gpu_names = {name for environment in environments for name in environment.gpu_names}
    cpu_models = {e.cpu_model for e in environments if e.cpu_model is not None}
    systems = {e.system for e in environments if e.system is not None}
    for found in (devices, gpu_names if devices != {"cpu"} else set(), cpu_models, systems):
        if len(found) > 1:
            raise UsageError(
                f"the results come from different hardware ({', '.join(sorted(found))}); "
                "make one baseline for each"
            )
    (device,) = devices
    system = next(iter(systems), None)
    hardware = Hardware(device=device, cpu_model=next(iter(cpu_models), None), system=system)
    if device == "cpu":
        return hardware
    # A job may see fewer GPUs than its node has, never more.
    most = max(len(environment.gpus) for environment in environments)
    return replace(hardware, gpu_name=next(iter(gpu_names), None), gpus_per_node=most or None)
