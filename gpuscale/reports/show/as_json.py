"""Results and baselines as JSON: the rows of the scaling table, for scripts."""

import msgspec

from gpuscale.analysis.projection import Projection
from gpuscale.records import Results, ScalingPoint
from gpuscale.records.json_text import document_text
from gpuscale.reports.show import Shown, columns_with


def render(shown: Shown) -> str:
    """Return the rows as a JSON document (docs/tools.md); unknown values are null."""
    return document_text(
        "gpuscale-scaling",
        **_origin(shown),
        injections=shown.injections,
        steps=shown.steps,
        rows=[_row(point, shown.steps) for point in shown.points],
        projections=[_projection(each) for each in shown.projections],
    )


def _origin(shown: Shown) -> dict[str, object]:
    """Return where, when and with what software the rows were measured."""
    content = shown.content
    if isinstance(content, Results):
        what, named = "results", {"name": None, "cluster": None, "recorded_at": content.created_at}
        source, environments = None, {content.allocation: content.environment}
    else:
        what = "baseline"
        named = {name: getattr(content, name) for name in ("name", "cluster", "recorded_at")}
        source, environments = content.source, dict(content.environments)
    version = {"gpuscale_version": content.gpuscale_version}
    return {"shown": what, **named, **version, "source": source, "environments": environments}


def _row(point: ScalingPoint, steps: int | None) -> dict[str, object]:
    kind, *numbers = columns_with(steps)
    return {
        kind.field: kind.value_in(point),
        "configuration": msgspec.structs.asdict(point.configuration),
        **{column.field: column.value_in(point) for column in numbers},
    }


def _projection(projection: Projection) -> dict[str, object]:
    """Return what a projection is based on, and its known errors."""
    return {
        "configuration": msgspec.structs.asdict(projection.configuration),
        "scaling": projection.scaling,
        "measured": projection.measured,
        "on_one_node": projection.on_one_node,
        "left_out": [each._asdict() for each in projection.left_out],
    }
