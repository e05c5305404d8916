"""A comparison as data: the same verdicts, for scripts."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from gpuscale.records import (
    Cause,
    Comparison,
    Configuration,
    EntryVerdict,
    Estimate,
    MetricVerdict,
    SpeedupPair,
)
from gpuscale.report.comparison_words import summary_line
from gpuscale.report.injection_text import injection_note

FORMAT = "gpuscale-comparison"
VERSION = 1


def comparison_json(comparison: Comparison, injections: Sequence[str] = ()) -> str:
    """The comparison as a JSON document (docs/comparison.md); unknown is null."""
    notes = (*([injection_note(injections)] if injections else []), *comparison.notes)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "baseline": {"name": comparison.baseline_name, "machine": comparison.baseline_machine},
        "current": {"machine": comparison.current_machine},
        "injections": list(injections),
        "exit_code": comparison.exit_code.value,
        "summary": summary_line(comparison),
        "entries": [_entry(entry) for entry in comparison.entries],
        "notes": list(notes),
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def _entry(entry: EntryVerdict) -> dict[str, object]:
    return {
        "case": entry.key.case,
        "strategy": entry.key.strategy,
        "gpus": entry.key.gpus,
        "configuration": _configuration(entry.configuration),
        "verdict": entry.verdict.value,
        "finding": None if entry.finding is None else entry.finding.value,
        "baseline": _pair(entry.baseline),
        "current": _pair(entry.current),
        "change": _estimate(entry.change),
        "changed_quantity": entry.changed_quantity,
        "minimum_detectable_loss": entry.minimum_detectable_loss,
        "further_runs": entry.further_runs,
        "reason": entry.reason,
        "metrics": [_metric(metric) for metric in entry.metrics],
        "causes": [_cause(cause) for cause in entry.causes],
    }


def _configuration(configuration: Configuration | None) -> dict[str, object] | None:
    """All fields but those that the row itself has."""
    if configuration is None:
        return None
    names = (name for name in Configuration.__struct_fields__ if name not in ("case", "strategy"))
    return {name: getattr(configuration, name) for name in names}


def _metric(metric: MetricVerdict) -> dict[str, object]:
    return {
        "metric": metric.metric.value,
        "unit": metric.unit,
        "verdict": metric.verdict.value,
        "baseline": _estimate(metric.baseline),
        "current": _estimate(metric.current),
        "change": _estimate(metric.change),
        "reason": metric.reason,
    }


def _cause(cause: Cause) -> dict[str, object]:
    return {**asdict(cause), "kind": cause.kind.value}


def _pair(pair: SpeedupPair) -> dict[str, object]:
    return {"speedup": _estimate(pair.speedup), "efficiency": _estimate(pair.efficiency)}


def _estimate(estimate: Estimate | None) -> dict[str, float | None] | None:
    if estimate is None:
        return None
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}
