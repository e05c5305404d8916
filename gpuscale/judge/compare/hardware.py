"""Compare the machine of a baseline with the machine of the results."""

import re
from collections.abc import Sequence

from gpuscale.records import Environment, Hardware, Statement
from gpuscale.records.environment import UNKNOWN_HOST, UNRECORDED

_MIG = re.compile(r"\bMIG\s+(\d+)G\.(\d+)GB\b")
_MEMORY = re.compile(r"\b(\d+)\s*(?:GB|GIB|G)\b")
# A site's settings do not make a different model: `300W`, `1410 MHz`, `PCIe Gen4`.
_SETTING = re.compile(r"\b\d+\s*(?:W|WATTS?|[MG]HZ)\b|\bGEN\s*\d\b")
_COUNT = re.compile(r"^\s*\d+\s*[X×]\s+")
_FORMS = frozenset({"SXM", "PCIE", "NVL"})
_VARIANT = re.compile(rf"\d+GB|HBM|{'|'.join(sorted(_FORMS))}")
_REVISION = re.compile(r"\b(SXM|HBM|PCI-?E)\d*E?\b")
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
    text = _COUNT.sub("", name.upper())
    text = _SETTING.sub("", text)
    text = _MIG.sub(r"MIG\1X\2", text)
    text = _MEMORY.sub(r"\1GB", text)
    text = _REVISION.sub(lambda match: match[1].replace("-", ""), text)
    words = frozenset(re.findall(r"[A-Z0-9]+", text)) - _VENDOR
    variant = frozenset(word for word in words if _VARIANT.fullmatch(word))
    numbered = frozenset(
        word
        for word in words - variant
        if word in _QUALIFIERS or any(letter.isdigit() for letter in word)
    )
    model = numbered or words - variant
    if "HBM" in variant:
        # Drivers name an `H100 SXM5` by its memory: `H100 80GB HBM3`.
        variant = variant - {"HBM"} | (variant & _FORMS or {"SXM"})
    return model, variant


def machine_mismatch(baseline: Hardware, environments: Sequence[Environment]) -> Statement | None:
    """Return why the results cannot be compared with the baseline; None if they can.

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
    """Return the current and the baseline name of hardware that differs; None if none does."""
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


def foreign_note(baseline: Hardware, environments: Sequence[Environment]) -> Statement | None:
    """Return a note if the results come from a different kind of host; otherwise None.

    Results on other GPUs are not compared at all, but the same GPUs may perform differently in
    another host.
    """
    # Results on CPUs are only compared if the CPUs are the same, so they need no note.
    if baseline.device == "cpu":
        return None
    on_gpus = [environment for environment in environments if environment.device != "cpu"]
    then, per_node = baseline.cpu_model, baseline.gpus_per_node
    found = [
        Statement.of("host_has_other_cpu", before=then, now=model)
        for model in dict.fromkeys(environment.cpu_model for environment in on_gpus)
        if then is not None and model is not None and not _may_be_same(then, model)
    ]
    # A job may see fewer GPUs than its node has, never more.
    found += [
        Statement.of("host_has_more_gpus", before=per_node, now=here)
        for here in dict.fromkeys(len(environment.gpus) for environment in on_gpus)
        if per_node is not None and here > per_node
    ]
    return Statement.of("other_host", differences=found) if found else None


def _may_be_same(one: str, other: str) -> bool:
    """True if one CPU name is a shorter form of the other, as `POWER9` is of `POWER9, altivec`."""
    words = [frozenset(re.findall(r"[a-z0-9]+", name.casefold())) for name in (one, other)]
    return words[0] <= words[1] or words[1] <= words[0]
