"""A comparison as JSON, for scripts."""

from dataclasses import asdict

import msgspec

from gpuscale.records import Scaling
from gpuscale.records.json_text import document_text
from gpuscale.records.probe import probes_for
from gpuscale.reports import cause_words
from gpuscale.reports.comparison import View
from gpuscale.reports.comparison.rows import Row, finding_of
from gpuscale.reports.reason_words import metric_reason

_OF_ENTRY = ("since", "change", "changed_quantity", "minimum_detectable_loss", "further_runs")
_OF_METRIC = ("verdict", "baseline", "current", "change")


def render(view: View) -> str:
    """Return the comparison as a JSON document (docs/tools.md); unknown values are null."""
    comparison = view.comparison
    return document_text(
        "gpuscale-comparison",
        headline=[{"label": label, "text": text} for label, text in view.headline],
        baseline={
            "name": comparison.baseline_name,
            "machine": comparison.baseline_machine,
            "kind": comparison.baseline_kind,
            **asdict(comparison.before),
        },
        current={"machine": comparison.current_machine, **asdict(comparison.after)},
        injections=view.injections,
        exit_code=view.exit_code,
        summary=view.summary,
        entries=[entry_of(row) for row in view.rows],
        notes=view.all_notes,
    )


def entry_of(row: Row) -> dict[str, object]:
    """Return a row as a dictionary, keyed by the field names of the JSON document."""
    entry, configuration = row.entry, None
    if entry.configuration is not None:
        fields = msgspec.structs.asdict(entry.configuration)
        # The row itself has the other fields.
        configuration = {name: fields[name] for name in fields if name not in entry.key._fields}
    return {
        **entry.key._asdict(),
        "configuration": configuration,
        "verdict": entry.verdict,
        "finding": finding_of(entry) or None,
        "baseline": _scaling(entry.baseline),
        "current": _scaling(entry.current),
        **{name: getattr(entry, name) for name in _OF_ENTRY},
        "reason": row.reason,
        "metrics": [
            {
                "metric": metric.metric.words,
                "unit": metric.metric.unit,
                **{name: getattr(metric, name) for name in _OF_METRIC},
                "reason": metric_reason(metric),
            }
            for metric in entry.metrics
        ],
        "causes": [
            {
                "kind": cause.kind,
                "headline": cause_words.headline(cause),
                "statement": cause_words.statement(cause),
                "share": cause.share,
                "lost_s": cause.lost_s,
                "scope": cause_words.scope(cause),
                "ranks": cause.ranks,
                "hosts": cause.hosts,
                "device_uuids": cause.device_uuids,
                "evidence": cause_words.evidence(cause),
                "probes": probes_for(cause.code),
                "next_step": cause_words.next_step(cause),
            }
            for cause in entry.causes
        ],
    }


def _scaling(side: Scaling) -> dict[str, object]:
    names = ("speedup", "efficiency", "step_time_s", "samples_per_s", "value")
    return {name: getattr(side, name) for name in names}
