"""Results and baselines as data: the rows of the scaling table, for scripts."""

from dataclasses import fields

import msgspec

from gpuscale.analysis.projection import Projection
from gpuscale.records import Results
from gpuscale.records.json_text import document_text
from gpuscale.reports.show.scaling_rows import ScalingRow, Shown, scaling_rows


def render(shown: Shown) -> str:
    """The rows as a JSON document (docs/tools.md); unknown is null."""
    return document_text(
        "gpuscale-scaling",
        **_origin(shown),
        injections=shown.injections,
        steps=shown.steps,
        rows=[_row(row) for row in scaling_rows(shown)],
        projections=[_projection(each) for each in shown.projections],
    )


def _origin(shown: Shown) -> dict[str, object]:
    """Of which machine the rows are, and since when."""
    content = shown.content
    if isinstance(content, Results):
        return {
            "shown": "results",
            "name": None,
            "cluster": None,
            "recorded_at": content.created_at,
            "gpuscale_version": content.gpuscale_version,
            "source": None,
            "environments": {content.allocation: content.environment},
        }
    return {
        "shown": "baseline",
        "name": content.name,
        "cluster": content.cluster,
        "recorded_at": content.recorded_at,
        "gpuscale_version": content.gpuscale_version,
        "source": content.source,
        "environments": content.environments,
    }


def _row(row: ScalingRow) -> dict[str, object]:
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    return {**values, "configuration": msgspec.structs.asdict(row.configuration)}


def _projection(projection: Projection) -> dict[str, object]:
    """What projected rows rest on."""
    return {
        "configuration": msgspec.structs.asdict(projection.configuration),
        "scaling": projection.scaling,
        "measured": projection.measured,
        "on_one_node": projection.on_one_node,
        "left_out": [each._asdict() for each in projection.left_out],
    }
