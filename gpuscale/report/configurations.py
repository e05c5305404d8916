"""Names for configurations: what tables and sentences call them."""

from collections.abc import Sequence

from gpuscale.records import Configuration


def set_apart(configurations: Sequence[Configuration]) -> dict[Configuration, str]:
    """A name for each configuration: its label, and options where labels alone are ambiguous."""
    distinct = dict.fromkeys(configurations)
    labels = [configuration.label for configuration in distinct]
    return {
        configuration: configuration.label
        if labels.count(configuration.label) == 1
        else f"{configuration.label} ({configuration_text(configuration)})"
        for configuration in distinct
    }


def configuration_text(configuration: Configuration) -> str:
    """What identifies a result beside case, strategy and gpus, in words."""
    words: list[str] = ["CPU ranks"] if configuration.device == "cpu" else []
    words += filter(None, (configuration.size, configuration.precision))
    if configuration.channels_last:
        words.append("channels-last")
    if configuration.compiled:
        words.append("compiled")
    if configuration.data is not None:
        words.append(f"{configuration.data} data")
    return ", ".join(words)
