"""Sentences for reasons and notes, and the format of each fact in them."""

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

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
from gpuscale.records.environment_diff import environment_text, listed
from gpuscale.reports.cause_words import device_text
from gpuscale.reports.phrases import (
    SEVERAL_UNITS,
    UNCERTAIN,
    amount_text,
    change_texts,
    counted,
    gpus_text,
    load_text,
    percent_text,
    quantity_text,
    rate_word,
    row_texts,
    to_minutes,
)

_SMALLEST_SHOWN = 0.0005
"""Smallest change that does not print as 0.0 %, as a fraction."""
_SINGLE_RUN = "a single run does not show how much runs differ"
_CHANGED = "{quantity} {change}"
_NOT_EXCLUDED = "a loss of {ok_bound} is not excluded"
_GAVE_A_NUMBER = "{valid} of {made} gave a number: {failures}"
_PUBLISHED = "{published} is {beside} the reference figure"
_TOLERANCE = "the tolerance of {tolerance}"
_DECLARED = (
    "intervals are widened by a declared deviation between allocations "
    "({deviation_time} of T, {deviation_speedup} of S and E)"
)


class Words(NamedTuple):
    """Texts for one kind of reason or note; `_FORMS` formats the facts in braces."""

    sentence: str
    short: str = ""
    """Reason for a row's verdict, in a few words."""
    remedy: str = ""
    """Remedy for a row that does not pass."""
    needs_baseline: bool = False
    """True if only more baseline runs, not more current runs, can settle the verdict."""
    is_in_table: bool = False
    """True if a row passes for a reason that the numbers in the table already show."""
    caution: str | None = None
    """Next step (may be empty) if the note casts doubt on all verdicts; None for other notes."""


WORDS: Mapping[str, Words] = {
    "no_loss": Words("no loss (95 % confidence)"),
    "bounded_loss": Words("no loss of {bound} or more (95 % confidence)"),
    "moved": Words("the {rate} on {gpus} {throughput}", is_in_table=True),
    "moved_with_efficiency": Words(
        "the {rate} on {gpus} {throughput}; E({n}) {efficiency}", is_in_table=True
    ),
    "scaling_lost": Words(
        "E({n}) {efficiency}: the {rate} on {gpus} {throughput}, that on 1 GPU {reference}"
    ),
    "each_gpu_slower": Words(
        "the {rate} on {gpus} {throughput}, as that on 1 GPU {reference}: "
        "each GPU is slower, not the scaling"
    ),
    "reference_faster": Words(
        "E({n}) {efficiency} only because the {rate} on 1 GPU {reference}; "
        "the {rate} on {gpus} {throughput}"
    ),
    "metric_lost": Words("{metric}; otherwise {otherwise}"),
    "slow_allocation": Words(
        "in {name} the {rate} on {gpus} was {loss} below that of the other "
        "allocations; all together, {otherwise}"
    ),
    "level_lost": Words(
        "the {rate} on {gpus} is {loss} less from {since} on{changed}",
        short="since {since}, against the nights before",
    ),
    "drifted": Words(
        "the {rate} on {gpus} fell slowly, by {loss} until {since}",
        short="slowly, until {since}, against the nights before",
    ),
    "single_run": Words(
        f"{_SINGLE_RUN}; measure 3 or more",
        short=_SINGLE_RUN,
        remedy="measure three runs or more of each row",
    ),
    "loss_not_excluded": Words(f"{_CHANGED}: {_NOT_EXCLUDED}{{remedy}}"),
    "within_margin": Words(
        f"{_CHANGED}: the interval lies below zero, but the loss is within the margin of "
        f"{{margin}}, and {_NOT_EXCLUDED}{{remedy}}"
    ),
    "not_beyond_chance": Words(
        f"{_CHANGED}: the interval lies below zero, but chance alone shows such a loss in "
        "{p} of comparisons (corrected for all rows), and only below "
        "{significance} is it called one{remedy}",
        short="slower, but not by more than chance could do",
    ),
    "unknown_end_moved": Words(
        f"{_CHANGED}, and the runs do not tell whether 1 GPU got faster or more GPUs slower"
        "{remedy}"
    ),
    "speedup_unknown": Words("{otherwise}; the speedup is unknown: {why}"),
    "neither_on_1_gpu": Words("neither side has runs on 1 GPU"),
    "baseline_not_on_1_gpu": Words("the baseline has no runs on 1 GPU"),
    "results_not_on_1_gpu": Words("no valid run on 1 GPU was measured"),
    "other_batch_on_1_gpu": Words("the batch on 1 GPU differs ({before} → {now})"),
    "further_runs": Words("about {needed} would probably settle it"),
    "unknown_further_runs": Words("more runs may settle it; {too_few} too few to tell how many"),
    "runs_differ": Words(
        "further runs like these would probably not settle it, since they differ by "
        "{deviation} from one to the next: find what disturbs them",
        remedy="find what disturbs these runs: 'gpuscale doctor', and other work on the host",
    ),
    "baseline_runs_differ": Words(
        "further runs like these would probably not settle it, since the baseline's runs differ by "
        "{deviation} from one to the next: more runs in the baseline may",
        needs_baseline=True,
    ),
    "nights_differ": Words(
        "further runs of tonight would probably not settle it, since nights differ by "
        "{deviation}: more nights in the baseline may",
        needs_baseline=True,
    ),
    "other_rows_differ": Words(
        "the row's own runs are too few to tell how much they differ, and those of other rows "
        "differ by {deviation} from one to the next",
        remedy="measure three runs or more of each row",
    ),
    "more_runs": Words("measure more runs"),
    "too_few_valid_runs": Words(_GAVE_A_NUMBER, short="too few of the runs gave a number"),
    "too_few_of_all_runs": Words(
        f"{_GAVE_A_NUMBER}; by the remaining runs, {{otherwise}}",
        short="too few of the runs gave a number",
    ),
    "too_few_since_look": Words(f"{_GAVE_A_NUMBER}; by those looked at, {{otherwise}}"),
    "too_few_to_look": Words("too few runs to look at ({runs} so far)"),
    "not_yet_confirmed": Words("{otherwise}; not yet confirmed by fresh runs"),
    "not_measured": Words(
        "not measured",
        short="not measured",
        remedy="name the results that have what is missing, or measure it: pytest … --resume FILE",
    ),
    "on_neither_side": Words("asked for, and on neither side", short="on neither side"),
    "no_entry": Words(
        "no entry in the baseline",
        short="not in the baseline",
        remedy="measure the same rows on both sides, or record them: 'gpuscale baseline record'",
    ),
    "no_entry_alike": Words(
        "no entry in the baseline of this configuration ({differences})",
        short="in the baseline in another configuration only",
        remedy="measure as the baseline was, or record one of what is measured now",
    ),
    "no_earlier_night": Words(
        "none of the earlier nights measured it", short="in no earlier night"
    ),
    "no_earlier_night_alike": Words(
        "none of the earlier nights measured it in this configuration ({differences})",
        short="in earlier nights in another configuration only",
    ),
    "other_measurement": Words(
        "not the same measurement ({differences})",
        short="not the same measurement",
        remedy="measure as the baseline was, or record one of what is measured now",
    ),
    "other_machine": Words(
        "measured on {now}, the baseline on {before}",
        remedy="name another baseline, one of this machine",
    ),
    "shared_gpu": Words("{ranks} ranks shared a GPU, so the speedup is meaningless"),
    "mixed_machines": Words("the results mix {one} and {other}; compare them one at a time"),
    "all_runs_failed": Words("{all_made} failed: {failure}", short="all runs failed"),
    "published_exceeded": Words(_PUBLISHED, is_in_table=True),
    "published_met": Words(f"{_PUBLISHED}, within {_TOLERANCE}", is_in_table=True),
    "published_missed": Words(f"{_PUBLISHED}, more than {_TOLERANCE}"),
    "published_uncertain": Words(
        f"{_PUBLISHED}, and its interval straddles {_TOLERANCE}{{remedy}}"
    ),
    "published_alone": Words("{otherwise}; {why}"),
    "speedup_reference": Words("the reference of the speedups", is_in_table=True),
    "only_speedup_reference": Words(
        "the reference of the speedups says nothing alone; measure on more GPUs too"
    ),
    "no_published_reference": Words("the reference has no comparable figure for 1 GPU"),
    "no_measured_reference": Words("its speedup is unknown: no valid run on 1 GPU was measured"),
    "other_published_reference": Words(
        "its speedup is over another measurement on 1 GPU (batch_per_gpu: {before} → {now})"
    ),
    "empty_baseline": Words(
        "the baseline has no entries; record some with 'gpuscale baseline record'"
    ),
    "no_valid_run": Words("the results have no valid run; nothing was judged"),
    "no_row_left": Words("no row is left after the choice of cases and GPUs"),
    "idle_override": Words(
        "an override in 'tolerances' fits no entry of the baseline ({conditions})"
    ),
    "several_units": Words(f"{SEVERAL_UNITS}: {{conditions}}"),
    "one_allocation": Words(f"the baseline comes from one allocation: {_DECLARED}"),
    "few_allocations": Words(
        "the baseline comes from {count}, fewer than the {enough} needed to estimate their "
        f"spread: {_DECLARED}"
    ),
    "few_allocations_of_rows": Words(
        "the baseline's runs of {row} come from {count}{other_rows}, "
        f"fewer than the {{enough}} needed to estimate their spread: {_DECLARED}"
    ),
    "estimated_spread": Words(
        "the spread between allocations is estimated from the baseline's {count}"
    ),
    "estimated_spread_of_others": Words(
        "the spread between allocations of the other entries is estimated from the baseline's "
        "{count}"
    ),
    "few_runs": Words(
        "fewer than {enough} runs in the baseline: {row} ({runs}){others}; intervals are wide"
    ),
    "newer_baseline": Words(
        "the baseline was measured after these results: the two sides may be the wrong way round",
        caution="give the earlier results first",
    ),
    "unlikely_change": Words(
        "{row}{others}: {factor} the baseline's throughput is a unit error "
        "until proven otherwise; check that batch and step time mean the same on both sides",
        caution="check that both sides were measured and counted alike",
    ),
    "same_allocation": Words(
        "the results come from an allocation that the baseline was recorded in ({name}); "
        "they cannot tell what changed since",
        caution="",
    ),
    "outlying_runs": Words(
        "left out of the baseline: run {run} of {name} for {row}, whose T differed by "
        "{difference} from the other runs{other_runs}"
    ),
    "outlying_allocations": Words(
        "left out of the baseline's spread: {names}, where T of {row}{others} "
        "differed by up to {difference} from the other allocations"
    ),
    "differing_allocation": Words(
        "the results are of several allocations that differ: on {row} T of {name} is "
        "{difference} relative to the others; judge each alone to see which is slower"
    ),
    "published_without_spread": Words(
        "reference figures have no spread: they are judged with a stated tolerance, "
        "and only for losses"
    ),
    "published_on_real_data": Words(
        "the reference figures were made on real data, these results on synthetic data"
    ),
    "published_in_other_precision": Words(
        "the reference figures are of {then}; {label} was measured in {options}"
    ),
    "published_without_precision": Words(
        "the reference figures do not name their precision; {label} was measured in {options}"
    ),
    "failed_runs": Words("{rows}: {failed} of {made} failed ({failure})"),
    "environment_changed": Words("changed since the baseline: {changes}"),
    "packages_changed": Words("{packages}: gpuscale env diff A B"),
    "gpu_places": Words("{places}"),
    "busy_host": Words(
        "a host was busy in {busy} of {made} ({on}: {load})",
        caution="measure again while the host does nothing else",
    ),
    "busy_host_alike": Words(
        "a host was busy in {busy} of {made} ({on}: {load}), as in the baseline",
        caution="",
    ),
    "busy_host_before": Words(
        "a host of the baseline was busy in {busy} of {made} ({on}: {load})", caution=""
    ),
    "uneven_runs": Words(
        "these runs are uneven: those of {row}{others} differ by {deviation} from one to the next, "
        "those of the baseline by {usual}",
        caution="",
    ),
    "not_judged": Words(
        "{row} was also measured with another configuration that is not judged ({differences})"
    ),
    "unchecked_training": Words(
        "that the ranks of a command train one model together was not checked: {cases}"
    ),
    "unit_error": Words(
        "{row}: an efficiency of {value} is a unit error until proven "
        "otherwise; check that batch per GPU and step time mean the same as on 1 GPU"
    ),
    "noisy_efficiency": Words(
        "{row}: an efficiency of {value} [{low}, {high}] may be noise, since "
        "its interval holds 1; make more runs, or measure on a quieter machine"
    ),
    "unit_error_of_side": Words("{side}: {error}"),
    "few_sessions": Words(
        "gains are between {sessions} before and {now} now, too few to tell how much "
        "sessions differ ({deviation_time} of T is assumed); measure both in turn to be sure",
        caution="",
    ),
    "slow_node": Words(
        "{since} ran on {name}, which is {loss} slower by itself",
        caution="measure on other nodes (gpuscale submit --nodelist), and see 'gpuscale history'",
    ),
    "nights_left_out": Words("left out: {nights}"),
    "expired": Words(
        "the baseline expired on {on} ({days}): it may no longer be what this machine can "
        "do; measure again and run 'gpuscale baseline update --expires DATE', which without "
        "--expires keeps the old date"
    ),
    "other_host": Words(
        "the baseline may be of another machine: {differences}; what depends on the host, "
        "such as loading data, may differ for that alone"
    ),
    "host_has_other_cpu": Words("its CPU is {before}, here {now}"),
    "host_has_more_gpus": Words("its nodes have {before} GPUs, here {now}"),
}
_FAILED = {
    "raised": ("raised an error", "raised an error"),
    "out_of_memory": ("ran out of memory", "ran out of memory"),
    "system": ("met a fault of the system", "met faults of the system"),
    "killed": ("was killed", "were killed"),
    "timeout": ("took too long", "took too long"),
    "launch": ("did not start", "did not start"),
    "invalid": ("was invalid", "were invalid"),
    "unread": ("reported too little", "reported too little"),
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
"""Words for configuration fields, keyed by field."""
_SINGLE = ("accumulate", "ranks_per_gpu")
"""Configuration fields for which None means 1."""
_DEVICES = {"cuda": "NVIDIA GPUs", "rocm": "AMD GPUs", "cpu": "CPU ranks"}


def reason_text(entry: EntryVerdict) -> str:
    """Explain a row's verdict in one plain sentence."""
    return to_minutes(_said(WORDS[entry.reason.code].sentence, entry.reason, entry))


def short_text(entry: EntryVerdict) -> str:
    """Explain a row's verdict in a few words; empty if its reason has no short form."""
    return to_minutes(_said(WORDS[entry.reason.code].short, entry.reason, entry))


def statement_text(statement: Statement) -> str:
    """Return the sentence for a statement that is not about a row, such as a note."""
    return to_minutes(_said(WORDS[statement.code].sentence, statement, None))


def parts_of(reason: Statement) -> Iterator[Statement]:
    """Yield a reason and its nested `otherwise` parts; the remedy of each part precedes it."""
    part: Statement | None = reason
    while part is not None:
        if remedy := part.facts.get("remedy"):
            yield remedy
        yield part
        part = part.facts.get("otherwise")


def metric_reason(metric: MetricVerdict) -> str:
    """Return the reason for a metric's verdict, as part of a sentence."""
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
    """Describe a change: `changed by −5.9 % (95 %: −15.7 % to +5.0 %)`."""
    value, *ends = change_texts(change)
    if value == UNCERTAIN:
        return f"is {value}"
    interval = f"{of_step} (95 %: {' to '.join(ends)})" if ends else ""
    return f"changed by {value}{interval}"


def _rose_or_fell(change: float) -> str:
    return f"{'rose' if change > 0 else 'fell'} by {format_percent(abs(change))}"


def _moved(change: float) -> str:
    return "stayed the same" if abs(change) < _SMALLEST_SHOWN else _rose_or_fell(change)


def _field_text(value: object, name: str) -> str:
    """Format a configuration field: a shape as `1×28×28`, ranks per node as `2 + 2 or 3 + 1`."""
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


_FORMS: Mapping[str, Callable[[Any], str]] = {
    **dict.fromkeys(
        (
            *("allowed", "deviation_speedup", "deviation_time", "loss", "margin", "ok_bound", "p"),
            *("significance", "tolerance"),
        ),
        format_percent,
    ),
    **dict.fromkeys(("efficiency", "reference", "throughput"), _moved),
    **dict.fromkeys(("high", "low", "value"), "{:.2f}".format),
    **dict.fromkeys(("before", "now"), lambda value: _DEVICES.get(value, str(value))),
    "all_made": lambda count: "the only run" if count == 1 else f"all {count} runs",
    "beside": lambda change: f"{format_percent(abs(change))} {'below' if change < 0 else 'above'}",
    "bound": lambda loss: rough_percent(loss) if loss < 0.01 else format_percent(loss),
    "change": _changed,
    "changed": lambda changes: (
        f" (changed that night: {'; '.join(map(environment_text, changes))})" if changes else ""
    ),
    "changes": lambda changes: "; ".join(map(environment_text, changes)),
    "count": lambda count: counted(count, "allocation"),
    "packages": lambda count: f"{counted(count, 'package')} differ{'s' if count == 1 else ''}",
    "days": lambda count: "yesterday" if count == 1 else f"{count} days ago",
    **dict.fromkeys(("deviation", "usual"), rough_percent),
    "difference": percent_text,
    "factor": lambda factor: f"{significant(factor, 2)} times",
    "failures": _failures,
    "load": load_text,
    "made": lambda count: counted(count, "run"),
    "names": listed,
    "needed": lambda count: counted(count, "further run"),
    "other_rows": lambda count: (
        f", those of {counted(count, 'other row')} from few too" if count else ""
    ),
    "other_runs": lambda count: f", and {count} more such" if count else "",
    "others": lambda count: f" and {count} more" if count else "",
    "places": lambda places: "; ".join(
        f"{device_text(uuid)} is {at}" for uuid, at in places.items()
    ),
    "row": attrgetter("label"),
    "rows": lambda keys: ", ".join(row_texts((key.name, key.gpus) for key in keys)),
    "sessions": lambda count: counted(count, "session"),
    "too_few": lambda count: f"{counted(count, 'run')} {'is' if count == 1 else 'are'}",
}
"""Functions that format facts, keyed by name; a list not named here is joined by commas."""


def _said(sentence: str, statement: Statement, entry: EntryVerdict | None) -> str:
    """Insert the formatted facts of a statement into a sentence."""
    texts = {name: _fact_text(name, fact, entry) for name, fact in statement.facts.items()}
    if entry is not None:
        texts |= {"n": str(entry.key.gpus), "gpus": gpus_text(entry.key.gpus)}
        texts["rate"] = rate_word(entry.configuration)
    return sentence.format_map(texts)


def _fact_text(name: str, fact: Any, entry: EntryVerdict | None) -> str:
    if name == "remedy":
        return "" if fact is None else f"; {_said(WORDS[fact.code].sentence, fact, entry)}"
    if isinstance(fact, Statement):
        return _said(WORDS[fact.code].sentence, fact, entry)
    if isinstance(fact, FieldChange):
        ends = (_field_text(each, fact.name) for each in (fact.before, fact.after))
        return f"{_FIELDS.get(fact.name, fact.name)}: {' → '.join(ends)}"
    if name in ("metric", "published", "quantity") and entry is not None:
        return _of_row(fact, name, entry)
    if name in _FORMS:
        return _FORMS[name](fact) if fact is not None else ""
    if isinstance(fact, list | tuple):
        return ", ".join(_fact_text("", each, entry) for each in fact)
    return str(fact)


def _of_row(fact: str, name: str, entry: EntryVerdict) -> str:
    """Return the words for a quantity or a metric of the row."""
    if name == "metric":
        (metric,) = (each for each in entry.metrics if each.metric.name == fact)
        return metric_reason(metric)
    if fact == QuantityName.EFFICIENCY:
        return quantity_text(QuantityName.EFFICIENCY, entry)
    if name == "published":
        return "the throughput"
    return f"the {quantity_text(QuantityName(fact), entry)}"
