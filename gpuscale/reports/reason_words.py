"""The words of each reason and note, and how the facts in them are shown."""

import string
from collections.abc import Callable, Mapping
from typing import Any

from gpuscale.base.units import format_percent, rough_percent, significant
from gpuscale.records import (
    EntryVerdict,
    Estimate,
    FieldChange,
    MetricVerdict,
    QuantityName,
    Statement,
    Verdict,
)
from gpuscale.records.environment_diff import change_text as environment_text
from gpuscale.records.environment_diff import listed
from gpuscale.reports.cause_words import device_text
from gpuscale.reports.phrases import (
    UNCERTAIN,
    amount_text,
    change_text,
    counted,
    gpus_text,
    load_text,
    percent_text,
    quantity_text,
    row_texts,
    to_minutes,
)

_SMALLEST_SHOWN = 0.0005
"""Changes below this fraction are printed as 0.0 %."""
_SINGLE_RUN = "a single run does not tell how much runs differ"
_CHANGED = "{quantity:quantity} {change:changed}"
_NOT_EXCLUDED = "a loss of {ok_bound:percent} is not excluded"
_GAVE_A_NUMBER = "{valid} of {made:runs} gave a number: {failures:failures}"
_PUBLISHED = "{quantity:published} is {change:beside} the published figure"
_TOLERANCE = "the tolerance of {tolerance:percent}"
_DECLARED = (
    "intervals are widened by a declared deviation between allocations "
    "({deviation_time:percent} of T, {deviation_speedup:percent} of S and E)"
)
WORDS: Mapping[str, str] = {
    "no_loss": "no loss, with 95 % confidence",
    "bounded_loss": "any loss is below {bound:bound}, with 95 % confidence",
    "one_sided_bound": (
        "a loss of {allowed:percent} is ruled out with 95 % confidence, one-sided; the two-sided "
        "interval reaches {bound:bound}"
    ),
    "moved": "the throughput on {gpus:gpus} {throughput:moved}",
    "moved_with_efficiency": (
        "the throughput on {gpus:gpus} {throughput:moved}; E({gpus}) {efficiency:moved}"
    ),
    "scaling_lost": (
        "E({gpus}) {efficiency:moved}: the throughput on {gpus:gpus} {throughput:moved}, "
        "that on 1 GPU {reference:moved}"
    ),
    "each_gpu_slower": (
        "the throughput on {gpus:gpus} {throughput:moved}, as that on 1 GPU {reference:moved}: "
        "each GPU is slower, not the scaling"
    ),
    "reference_faster": (
        "E({gpus}) {efficiency:moved} only because the throughput on 1 GPU {reference:moved}; "
        "the throughput on {gpus:gpus} {throughput:moved}"
    ),
    "metric_lost": "{metric:metric}; otherwise {otherwise}",
    "slow_allocation": (
        "in {name} the throughput on {gpus:gpus} was {loss:percent} below that of the other "
        "allocations; all together, {otherwise}"
    ),
    "level_lost": (
        "the throughput on {gpus:gpus} is {change:percent} less from {since} on"
        "{changed:that night}; tonight against those nights alone, {otherwise}"
    ),
    "drifted": (
        "the throughput on {gpus:gpus} fell slowly, by {change:percent} until {since}; tonight "
        "against the last nights alone, {otherwise}"
    ),
    "single_run": f"{_SINGLE_RUN}; measure 3 or more",
    "loss_not_excluded": f"{_CHANGED}: {_NOT_EXCLUDED}{{remedy:after}}",
    "within_margin": (
        f"{_CHANGED}: the interval lies below zero, but the loss is within the margin of "
        f"{{margin:percent}}, and {_NOT_EXCLUDED}{{remedy:after}}"
    ),
    "not_beyond_chance": (
        f"{_CHANGED}: the interval lies below zero, but chance alone shows such a loss in "
        "{p:percent} of comparisons (corrected for all rows), and only below "
        "{significance:percent} is it called one{remedy:after}"
    ),
    "unknown_end_moved": (
        f"{_CHANGED}, and the runs do not tell whether 1 GPU got faster or more GPUs slower"
        "{remedy:after}"
    ),
    "speedup_unknown": "{otherwise}; the speedup is unknown: {why}",
    "neither_on_1_gpu": "neither side has runs on 1 GPU",
    "baseline_not_on_1_gpu": "the baseline has no runs on 1 GPU",
    "results_not_on_1_gpu": "no valid run on 1 GPU was measured",
    "other_batch_on_1_gpu": "the batch on 1 GPU differs ({before} → {now})",
    "further_runs": "about {needed:further runs} would probably settle it",
    "unknown_further_runs": "more runs may settle it; {made:runs are} too few to tell how many",
    "runs_differ": (
        "further runs like these would probably not settle it, since they differ by "
        "{deviation:rough} from one to the next: find what disturbs them"
    ),
    "baseline_runs_differ": (
        "further runs like these would probably not settle it, since the baseline's runs differ by "
        "{deviation:rough} from one to the next: more runs in the baseline may"
    ),
    "nights_differ": (
        "further runs of tonight would probably not settle it, since nights differ by "
        "{deviation:rough}: more nights in the baseline may"
    ),
    "other_rows_differ": (
        "the row's own runs are too few to tell how much they differ, and those of other rows "
        "differ by {deviation:rough} from one to the next"
    ),
    "more_runs": "measure more runs",
    "too_few_valid_runs": _GAVE_A_NUMBER,
    "too_few_of_all_runs": f"{_GAVE_A_NUMBER}; by what is left, {{otherwise}}",
    "too_few_since_look": f"{_GAVE_A_NUMBER}; by those looked at, {{otherwise}}",
    "too_few_to_look": "too few runs to look at ({made} so far)",
    "not_yet_confirmed": "{otherwise}; not yet confirmed by fresh runs",
    "not_measured": "not measured",
    "on_neither_side": "asked for, and on neither side",
    "no_entry": "no entry in the baseline",
    "no_entry_alike": "no entry in the baseline of this configuration ({differences:list})",
    "no_earlier_night": "none of the earlier nights measured it",
    "no_earlier_night_alike": (
        "none of the earlier nights measured it in this configuration ({differences:list})"
    ),
    "other_measurement": "not the same measurement ({differences:list})",
    "other_machine": "measured on {now:device}, the baseline on {before:device}",
    "shared_gpu": "{ranks} ranks shared a GPU, which tells nothing of a speedup",
    "mixed_machines": "the results mix {one} and {other}; compare them one at a time",
    "all_runs_failed": "{made:all runs} failed: {failure}",
    "published_exceeded": _PUBLISHED,
    "published_met": f"{_PUBLISHED}, within {_TOLERANCE}",
    "published_missed": f"{_PUBLISHED}, more than {_TOLERANCE}",
    "published_uncertain": f"{_PUBLISHED}, and its interval straddles {_TOLERANCE}{{remedy:after}}",
    "published_alone": "{otherwise}; {why}",
    "speedup_reference": "the reference of the speedups",
    "only_speedup_reference": (
        "the reference of the speedups says nothing alone; measure on more GPUs too"
    ),
    "no_published_reference": "the publication has no comparable figure for 1 GPU",
    "no_measured_reference": "its speedup is unknown: no valid run on 1 GPU was measured",
    "other_published_reference": (
        "its speedup is over another measurement on 1 GPU (batch_per_gpu: {before} → {now})"
    ),
    "empty_baseline": "the baseline has no entries; record some with 'gpuscale baseline record'",
    "no_valid_run": "the results have no valid run; nothing was judged",
    "no_row_left": "no row is left after the choice of cases and GPUs",
    "idle_override": (
        "an override in 'tolerances' fits no entry of the baseline ({conditions:list})"
    ),
    "one_allocation": f"the baseline comes from one allocation: {_DECLARED}",
    "few_allocations": (
        "the baseline comes from {count} allocations, fewer than the {enough} that tell their "
        f"spread: {_DECLARED}"
    ),
    "few_allocations_of_rows": (
        "the baseline's runs of {row:row} come from {count:allocations}{others:and more rows}, "
        f"fewer than the {{enough}} that tell their spread: {_DECLARED}"
    ),
    "estimated_spread": (
        "the spread between allocations is estimated from the baseline's {count} allocations"
    ),
    "estimated_spread_of_others": (
        "the spread between allocations of the other entries is estimated from the baseline's "
        "{count} allocations"
    ),
    "few_runs": (
        "fewer than {enough} runs in the baseline: {row:row} ({runs}){others:and more}; "
        "intervals are wide"
    ),
    "newer_baseline": (
        "the baseline was measured after these results: the two sides may be the wrong way round"
    ),
    "same_allocation": (
        "the results come from an allocation that the baseline was recorded in ({name}); "
        "they cannot tell what changed since"
    ),
    "outlying_runs": (
        "left out of the baseline: run {run} of {name} for {row:row}, whose T differed by "
        "{change:signed} from the other runs{others:and more runs}"
    ),
    "outlying_allocations": (
        "left out of the baseline's spread: {names:listed}, where T of {row:row}{others:and more} "
        "differed by up to {change:signed} from the other allocations"
    ),
    "differing_allocation": (
        "the results are of several allocations that differ: on {row:row} T of {name} is "
        "{change:signed} beside the others; judge each alone to see which is slower"
    ),
    "published_without_spread": (
        "published figures have no spread: consistent or not is told with a stated tolerance, "
        "and only to the worse side"
    ),
    "published_on_real_data": (
        "the published figures were made on real data, these results on synthetic data"
    ),
    "published_in_other_precision": (
        "the published figures are of {then}; {label} was measured in {options:list}"
    ),
    "published_without_precision": (
        "the published figures do not name their precision; {label} was measured in {options:list}"
    ),
    "failed_runs": "{rows:rows}: {failed} of {made:runs} failed ({failure})",
    "environment_changed": "changed since the baseline: {changes:changes}",
    "gpu_places": "{places:places}",
    "busy_host": "the host was busy in {busy} of {runs:runs} ({load:load})",
    "busy_host_before": "the baseline's host was busy in {busy} of {runs:runs} ({load:load})",
    "not_judged": (
        "{row:row} was also measured with another configuration that is not judged "
        "({differences:list})"
    ),
    "unchecked_training": (
        "that the ranks of a command train one model together was not checked: {cases:list}"
    ),
    "unit_error": (
        "{row:row}: an efficiency of {efficiency:.2f} is a unit error until proven "
        "otherwise; check that batch per GPU and step time mean the same as on 1 GPU"
    ),
    "noisy_efficiency": (
        "{row:row}: an efficiency of {efficiency:.2f} [{low:.2f}, {high:.2f}] may be noise, since "
        "its interval holds 1; make more runs, or measure on a quieter machine"
    ),
    "unit_error_of_side": "{side}: {error}",
    "unlikely_change": (
        "{row:row}{others:and more}: {factor:times} the baseline's throughput is a unit error "
        "until proven otherwise; check that batch and step time mean the same on both sides"
    ),
    "few_sessions": (
        "gains are between {before:sessions} before and {now} now, too few to tell how much "
        "sessions differ ({deviation:percent} of T is assumed); measure both in turn to be sure"
    ),
    "nights_left_out": "left out: {nights:list}",
    "expired": (
        "the baseline expired on {on} ({days:days ago}): it may no longer be what this machine can "
        "do; measure again and run 'gpuscale baseline update --expires DATE', which without "
        "--expires keeps the old date"
    ),
    "other_host": (
        "the baseline may be of another machine: {differences:list}; what depends on the host, "
        "such as loading data, may differ for that alone"
    ),
    "host_has_other_cpu": "its CPU is {before}, here {now}",
    "host_has_more_gpus": "its nodes have {before} GPUs, here {now}",
}
_FAILED = {
    "raised": ("raised an error", "raised an error"),
    "out_of_memory": ("ran out of memory", "ran out of memory"),
    "system": ("met a fault of the system", "met faults of the system"),
    "killed": ("was killed", "were killed"),
    "timeout": ("took too long", "took too long"),
    "launch": ("did not start", "did not start"),
    "invalid": ("was invalid", "were invalid"),
    "unread": ("told too little", "told too little"),
    "unsteady": ("was unsteady", "were unsteady"),
}
_NO_WINDOWS = ("has no windows", "have no windows")
_FIELDS = {
    "accumulate": "batches a step",
    "batch_per_gpu": "batch per GPU",
    "channels_last": "channels-last",
    "data_workers": "data workers",
    "micro_batches": "micro-batches",
    "ranks_per_gpu": "ranks on a GPU",
    "ranks_per_node": "ranks per node",
    "sample_shape": "sample shape",
    "strategy_options": "options of the strategy",
    "threads_per_rank": "threads per rank",
}
"""Fields of configurations whose names are no words."""
_SINGLE = ("accumulate", "ranks_per_gpu")
"""Those that are 1 where they are not given."""
_DEVICES = {"cuda": "GPUs", "cpu": "CPU ranks"}


def reason_text(entry: EntryVerdict) -> str:
    """One sentence that a tired person understands."""
    return to_minutes(_Speaker(entry).said(entry.reason))


def statement_text(statement: Statement) -> str:
    """The words of a statement that is about no row, such as a note."""
    return to_minutes(_Speaker(None).said(statement))


def metric_reason(metric: MetricVerdict) -> str:
    """Why a metric got its verdict, as a part of a sentence."""
    spec, change, bound = metric.metric, metric.change, metric.loss_bound
    of_step = " of the step time" if spec.in_points else ""
    if metric.verdict in (Verdict.REGRESSED, Verdict.IMPROVED):
        then, now = (amount_text(end.value, spec.unit) for end in (metric.baseline, metric.current))
        return f"{spec.words} {_rose_or_fell(change.value)}{of_step}, from {then} to {now}"
    if bound is None:
        return _SINGLE_RUN
    if metric.verdict is Verdict.OK:
        loss = "fall" if spec.more_is_better else "rise"
        said = (
            f"any {loss} is below {format_percent(bound)}{of_step}" if bound > 0 else f"no {loss}"
        )
        return f"{said}, with 95 % confidence"
    return f"{spec.words} {_changed(change, of_step)}, too uncertain to call"


def _changed(change: Estimate, of_step: str = "") -> str:
    """`changed by −5.9 % (95 %: −15.7 % to +5.0 %)`."""
    text = change_text(change, f"{{}}{of_step} (95 %: {{}} to {{}})")
    return f"is {text}" if text == UNCERTAIN else f"changed by {text}"


def _rose_or_fell(change: float) -> str:
    return f"{'rose' if change > 0 else 'fell'} by {format_percent(abs(change))}"


def _moved(change: float) -> str:
    return "stayed the same" if abs(change) < _SMALLEST_SHOWN else _rose_or_fell(change)


def _field_text(value: object, name: str) -> str:
    """`full`; of a shape `1×28×28`, and of the ranks on each node `2 + 2 or 3 + 1`."""
    if value is None:
        return "1" if name in _SINGLE else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, frozenset):
        return " or ".join(" + ".join(map(str, placement)) for placement in sorted(value))
    return "×".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _failures(counts: Mapping[str, int]) -> str:
    words = {kind: _FAILED.get(kind, _NO_WINDOWS) for kind in counts}
    return ", ".join(f"{count} {words[kind][count > 1]}" for kind, count in counts.items())


_SHOWN: Mapping[str, Callable[[Any], str]] = {
    "percent": format_percent,
    "rough": rough_percent,
    "bound": lambda loss: rough_percent(loss) if loss < 0.01 else format_percent(loss),
    "signed": percent_text,
    "changed": _changed,
    "moved": _moved,
    "beside": lambda change: f"{format_percent(abs(change))} {'below' if change < 0 else 'above'}",
    "failures": _failures,
    "gpus": gpus_text,
    "listed": listed,
    "row": lambda key: str(key.label),
    "rows": lambda keys: ", ".join(row_texts((key.name, key.gpus) for key in keys)),
    "load": load_text,
    "places": lambda places: "; ".join(
        f"{device_text(uuid)} is {at}" for uuid, at in places.items()
    ),
    "changes": lambda changes: "; ".join(map(environment_text, changes)),
    "that night": lambda changes: (
        f" (changed that night: {'; '.join(map(environment_text, changes))})" if changes else ""
    ),
    "times": lambda factor: f"{significant(factor, 2)} times",
    "sessions": lambda count: counted(count, "session"),
    "device": lambda name: _DEVICES.get(name, name),
    "and more runs": lambda count: f", and {count} more such" if count else "",
    "and more": lambda count: f" and {count} more" if count else "",
    "and more rows": lambda count: (
        f", those of {counted(count, 'other row')} from few too" if count else ""
    ),
    "allocations": lambda count: counted(count, "allocation"),
    "days ago": lambda count: "yesterday" if count == 1 else f"{count} days ago",
    "all runs": lambda count: "the only run" if count == 1 else f"all {count} runs",
    "runs": lambda count: counted(count, "run"),
    "further runs": lambda count: counted(count, "further run"),
    "runs are": lambda count: f"{counted(count, 'run')} {'is' if count == 1 else 'are'}",
}
"""The ways to show a fact, by the names that stand behind a colon in `WORDS`."""


class _Speaker(string.Formatter):
    """Says statements about one row, or about none."""

    def __init__(self, entry: EntryVerdict | None) -> None:
        self._entry = entry

    def said(self, statement: Statement) -> str:
        """The words with the facts in them."""
        about = {} if self._entry is None else {"gpus": self._entry.key.gpus}
        return self.vformat(WORDS[statement.code], (), {**about, **statement.facts})

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Statement):
            return f"{'; ' if format_spec == 'after' else ''}{self.said(value)}"
        if isinstance(value, FieldChange):
            ends = (_field_text(each, value.name) for each in (value.before, value.after))
            return f"{_FIELDS.get(value.name, value.name)}: {' → '.join(ends)}"
        if format_spec == "after":
            return ""
        if format_spec == "list":
            return ", ".join(self.format_field(each, "") for each in value)
        if format_spec in ("quantity", "published", "metric") and self._entry is not None:
            return _of_row(value, format_spec, self._entry)
        if format_spec in _SHOWN:
            return _SHOWN[format_spec](value)
        return str(super().format_field(value, format_spec))


def _of_row(value: str, way: str, entry: EntryVerdict) -> str:
    """A quantity or a metric of the row by its name."""
    if way == "metric":
        (metric,) = (each for each in entry.metrics if each.metric.name == value)
        return metric_reason(metric)
    quantity = QuantityName(value)
    if quantity is QuantityName.EFFICIENCY:
        return quantity_text(quantity, entry.key.gpus)
    if way == "published":
        return "the throughput"
    return f"the {quantity_text(quantity, entry.key.gpus)}"
