"""How NCCL or RCCL connected the ranks of each row, as `gpuscale show --phases` says it."""

from collections.abc import Iterator, Sequence

from gpuscale.records import Run


def connection_lines(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a line for each way in which ranks were connected, with the rows that have it."""
    rows: dict[str, dict[str, None]] = {}
    for run in runs:
        known = [node.communicator for node in run.nodes if node.communicator is not None]
        library = next((own.version for own in known if own.version), "NCCL")
        for own in known:
            facts = ", ".join(f"{name} {value}" for name, value in own.facts.items())
            rows.setdefault(f"{library}: {facts}", {})[run.key.label] = None
    for text, labels in rows.items():
        yield f"{'; '.join(labels)}: {text}"
