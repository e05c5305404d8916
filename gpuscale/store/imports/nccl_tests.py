"""Import bus bandwidths by size, and their average, from logs of nccl-tests and rccl-tests."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from gpuscale.base.errors import DecodeError
from gpuscale.store.imports.session import RecordedValue, Session
from gpuscale.workload.benchmark_output import NcclTests, positive

_RANK = re.compile(r"#\s+Rank\s+(\d+)\s.* on\s+(\S+) device")


def sessions(path: Path, text: str) -> Iterator[Session]:
    """Yield the session of a log; it has no timestamp, so the time of the file is used."""
    reader = NcclTests()
    lines, at_s = text.splitlines(), path.stat().st_mtime
    hosts = {int(found[1]): found[2] for found in filter(None, map(_RANK.match, lines))}
    values = tuple(
        RecordedValue(
            # Named as `gpuscale run --figure nccl-tests` names them, so that both can be compared.
            case=f"{reader.collective or path.stem.removesuffix('_perf')}_perf",
            metric=metric,
            value=bandwidth_gb_s,
            unit="GB/s",
            more_is_better=True,
            gpus=max(1, len(hosts)),
            hosts=tuple(dict.fromkeys(hosts.values())),
            at_s=at_s,
        )
        for line in lines
        for metric, printed in reader.figures(line).items()
        if (bandwidth_gb_s := positive(printed)) is not None
    )
    if not values:
        raise DecodeError("", "has no line of a bandwidth as nccl-tests and rccl-tests print it")
    yield Session(
        key=path.stem,
        began_at=datetime.fromtimestamp(at_s, UTC),
        host=hosts.get(0),
        values=values,
    )
