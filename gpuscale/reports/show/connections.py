"""How NCCL or RCCL connected the ranks of each row, as `gpuscale show --phases` says it."""

from collections.abc import Iterator, Sequence

from gpuscale.base.devices import GPU_KINDS
from gpuscale.records import Run


def connection_lines(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a line for each way in which ranks were connected, with the rows that have it."""
    rows: dict[str, dict[str, None]] = {}
    for run in runs:
        # Often only rank 0 logs the library's version.
        libraries = (node.connections.get("library") for node in run.nodes)
        kind = GPU_KINDS.get(run.configuration.device, GPU_KINDS["cuda"])
        library = next(filter(None, libraries), kind.library)
        for node in run.nodes:
            if facts := {**node.connections, "library": library} if node.connections else {}:
                text = ", ".join(f"{name} {value}" for name, value in sorted(facts.items()))
                rows.setdefault(text, {})[run.key.label] = None
    yield from (f"{'; '.join(labels)}: {text}" for text, labels in rows.items())
