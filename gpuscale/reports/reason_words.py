"""Sentence templates for the reasons of verdicts and for notes, and formats of their facts."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from gpuscale.analysis.moderation import MINIMUM_ALLOCATIONS
from gpuscale.base.host import device_word
from gpuscale.base.text import format_percent, rough_percent, significant
from gpuscale.records import (
    EntryKey,
    EntryVerdict,
    FieldChange,
    MetricVerdict,
    QuantityName,
    Statement,
    Verdict,
)
from gpuscale.records.environment_diff import environment_text, listed
from gpuscale.reports import phrases
from gpuscale.reports.cause_evidence import device_text
from gpuscale.reports.phrases import counted, devices_text, found_change_text, rate_word, to_minutes

_SMALLEST_SHOWN = 0.0005
"""Smallest change that does not print as 0.0 %, as a fraction."""
QUIETER = "quieter runs"
"""Remedy whose text depends on all rows (`next_step`)."""
ONCE_IDLE = "measure again once the host is idle"
_HISTORY = "see 'gpuscale history' for what else changed then"
_SINGLE_RUN = "a single run does not show how much runs differ"
_CHANGED = "{quantity} changed by {change}"
_NOT_EXCLUDED = "a loss of {ok_bound} is not excluded{looked}"
_WITHIN_MARGIN = (
    "the interval lies below zero, but the loss is within the margin of {margin}, and "
    f"{_NOT_EXCLUDED}"
)
_CHANCE = (
    "the interval alone lies below zero, but p, corrected for the number of tests, is {p}; a loss "
    "needs less than {significance}"
)
_WHICH_END = "the runs do not tell whether 1 {device} got faster or several got slower"
_GAVE_A_NUMBER = "{valid} of {made} gave a number: {failures}"
_BUSY = "a host was busy in {busy} of {made} ({on}: {load})"
_BUSY_BEFORE = "a host of the baseline was busy in {busy} of {made} ({on}: {load})"
_BASELINE_DIFFERS = "since the earlier runs{on_1} deviate by {deviation}{tonight}"
_PUBLISHED = "{published} is {beside} the reference figure"
_TOLERANCE = "the tolerance of {tolerance}"


class Words(NamedTuple):
    """Text templates for one kind of reason or note; `_FORMS` formats the facts in braces."""

    sentence: str
    short: str = ""
    """Reason for a row's verdict, in a few words."""
    remedy: str = ""
    """Remedy for a row that does not pass."""
    needs_baseline: bool = False
    """True if only more baseline runs, not more current runs, can settle the verdict."""
    beyond_table: str | None = None
    """Text to show below a table that has the row's numbers; if None, `sentence` is shown."""
    caution: str | None = None
    """Next step (may be empty) if the note casts doubt on all verdicts; None for other notes."""
    caution_is_first: bool = False
    """True if `caution` precedes all other next steps, even if the verdict is a pass."""


WORDS: Mapping[str, Words] = {
    "no_loss": Words("no loss (95 % confidence)"),
    "bounded_loss": Words("no loss of {bound} or more (95 % confidence)"),
    "one_sided_loss": Words("no loss of {bound} or more (one-sided 95 %; brackets: two-sided)"),
    "moved": Words("the {rate} on {gpus} {throughput}", beyond_table=""),
    "moved_with_efficiency": Words(
        "the {rate} on {gpus} {throughput}; E({n}) {efficiency}", beyond_table=""
    ),
    "scaling_lost": Words(
        "E({n}) {efficiency}: the {rate} on {gpus} {throughput}, that on 1 {device} {reference}"
        "{is_open_on_1}"
    ),
    "each_gpu_slower": Words(
        "the {rate} on {gpus} {throughput}, as that on 1 {device} {reference}: "
        "each {device} is slower, not the scaling"
    ),
    "reference_faster": Words(
        "E({n}) {efficiency} only because the {rate} on 1 {device} {reference}; "
        "the {rate} on {gpus} {throughput}"
    ),
    "metric_lost": Words("{metric}; otherwise {otherwise}"),
    "slow_allocation": Words(
        "in {name} the {rate} on {gpus} was {loss} below the baseline's; all together, {otherwise}",
        short="one of the sessions was slower than the baseline",
        remedy=QUIETER,
    ),
    "level_lost": Words(
        "the {rate} on {gpus} is {loss} lower from {since} on{changed}",
        short="since {since}, against the nights before",
        remedy=_HISTORY,
    ),
    "drifted": Words(
        "the {rate} on {gpus} fell slowly, by {loss} until {since}",
        short="slowly, until {since}, against the nights before",
        remedy=_HISTORY,
    ),
    "single_run": Words(
        f"{_SINGLE_RUN}; measure 3 or more",
        short=_SINGLE_RUN,
        beyond_table=_SINGLE_RUN,
        remedy="measure three runs or more of each row",
    ),
    "loss_not_excluded": Words(
        f"{_CHANGED}: {_NOT_EXCLUDED}{{remedy}}", beyond_table=f"{_NOT_EXCLUDED}{{remedy}}"
    ),
    "within_margin": Words(
        f"{_CHANGED}: {_WITHIN_MARGIN}{{remedy}}", beyond_table=f"{_WITHIN_MARGIN}{{remedy}}"
    ),
    "not_beyond_chance": Words(
        f"{_CHANGED}: {_CHANCE}{{remedy}}",
        short="worse, but not by more than chance could do",
        beyond_table=f"{_CHANCE}{{remedy}}",
    ),
    "unknown_end_moved": Words(
        f"{_CHANGED}, and {_WHICH_END}{{remedy}}", beyond_table=f"{_WHICH_END}{{remedy}}"
    ),
    "straggler_besides": Words(
        f"{_CHANGED}: that alone would not prove a loss; that a rank lags beyond chance does"
    ),
    "speedup_unknown": Words("{otherwise}; the speedup is unknown: {why}"),
    "not_on_1_gpu": Words("no valid run on 1 {device} ({names})"),
    "other_batch_on_1_gpu": Words("the batch on 1 {device} differs ({before} → {now})"),
    "further_runs": Words("about {needed} would probably settle it", beyond_table=""),
    "unknown_further_runs": Words(
        "more runs may settle it; {too_few} too few to tell how many", beyond_table=""
    ),
    "runs_differ": Words(
        "further runs like these would probably not settle it, since those{on_1} deviate "
        "by {deviation}",
        remedy=QUIETER,
    ),
    "baseline_runs_differ": Words(
        "if nothing changed, it probably takes {of_both} runs on both sides to settle it, "
        f"{_BASELINE_DIFFERS}",
        needs_baseline=True,
    ),
    "both_sides_differ": Words(
        f"even {{runs}} runs on both sides might not settle it, {_BASELINE_DIFFERS}",
        needs_baseline=True,
    ),
    "loss_takes_both_sides": Words(
        "if the loss is as large as it seems, it probably takes {of_both} runs on both sides to "
        f"show it, {_BASELINE_DIFFERS}",
        needs_baseline=True,
    ),
    "nights_assumed": Words(
        "further runs of this session would probably not settle it: until the baseline has "
        f"{MINIMUM_ALLOCATIONS} sessions, their deviation is assumed: {{deviation}} in {{quantity}}"
        "{as_runs}",
        needs_baseline=True,
    ),
    "nights_differ": Words(
        "further runs of this session would probably not settle it, since sessions differ by "
        "{deviation} in {quantity}; if nothing changed, about {of_both_sessions} sessions on each "
        "side would probably show it",
        needs_baseline=True,
    ),
    "other_rows_differ": Words(
        "the row's own runs are too few to tell how much they differ, and those of other rows "
        "deviate by {deviation}",
        remedy="measure three runs or more of each row",
    ),
    "once_idle": Words(ONCE_IDLE, beyond_table=""),
    "baseline_once_idle": Words(
        "the baseline's host was busy: a baseline measured on an idle host may settle it",
        needs_baseline=True,
    ),
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
        remedy="name results that have them too, measure them ({maker}), or choose rows by --case",
    ),
    "on_neither_side": Words("asked for, and on neither side", short="on neither side"),
    "no_entry": Words(
        "no entry in the baseline",
        short="not in the baseline",
        remedy="measure the same rows on both sides, record them ('gpuscale baseline record'), or "
        "compare again after more nights",
    ),
    "no_entry_alike": Words(
        "no entry in the baseline with this configuration ({differences})",
        short="in the baseline in another configuration only",
        remedy="measure in the baseline's configuration, or record a baseline of this one",
    ),
    "other_measurement": Words(
        "not the same measurement ({differences})",
        short="not the same measurement",
        remedy="measure in the baseline's configuration, or record a baseline of this one",
    ),
    "other_machine": Words(
        "measured on {now}, the baseline on {before}",
        remedy="compare with a baseline of this machine",
    ),
    "shared_gpu": Words("{ranks} ranks shared a GPU, so the speedup is meaningless"),
    "mixed_machines": Words("the results mix {one} and {other}; compare them one at a time"),
    "all_runs_failed": Words("{all_made} failed: {failure}", short="all runs failed"),
    "published_met": Words(f"{_PUBLISHED} (tolerance: {{tolerance}})", beyond_table=""),
    "published_missed": Words(f"{_PUBLISHED}, more than {_TOLERANCE}"),
    "published_uncertain": Words(
        f"{_PUBLISHED}, and its interval straddles {_TOLERANCE}; more runs may settle it",
        remedy="make more runs: {maker} … --runs N --resume FILE",
    ),
    "speedup_reference": Words("the reference of the speedups", beyond_table=""),
    "only_speedup_reference": Words(
        "the reference of the speedups says nothing alone; measure on more {device}s too"
    ),
    "no_published_reference": Words("the reference has no comparable figure for 1 {device}"),
    "empty_baseline": Words(
        "the baseline has no entries; record some with 'gpuscale baseline record'"
    ),
    "no_valid_run": Words(
        "the results have no valid run; nothing was judged",
        caution="see with 'gpuscale show' why the runs failed, and measure again",
        caution_is_first=True,
    ),
    "no_row_left": Words("no row is left after the choice by --case and --gpus"),
    "rows_selected": Words("only chosen rows are judged, and verdicts are corrected for these"),
    "several_units": Words(f"{phrases.SEVERAL_UNITS}: {{conditions}}"),
    "unused_override": Words("tolerances.{name} matches no row ({one}; there is {names})"),
    "newer_baseline": Words(
        "the baseline was measured after these results: the two sides may be the wrong way round",
        caution="give the earlier results first",
        caution_is_first=True,
    ),
    "unlikely_change": Words(
        "{row}{others}: {factor} the baseline's throughput; unless the training itself was "
        "changed, check that batch and step time mean the same on both sides",
        caution="check that both sides were measured and counted alike",
        caution_is_first=True,
    ),
    "same_allocation": Words(
        "the results come from a session that the baseline was recorded in ({name}); "
        "they cannot tell what changed since",
        caution="",
    ),
    "outlying_runs": Words(
        "left out of the baseline, also of its values above: run {run} of {name} for {row}, whose "
        "T differed by {difference} from the other runs of its session{other_runs}"
    ),
    "outlying_allocations": Words(
        "left out of the baseline: {names}, where T of {row}{others} "
        "differed by up to {difference} from the other sessions"
    ),
    "published_in_other_precision": Words(
        "the reference figures are of {then}; {label} was measured in {now}"
    ),
    "failed_runs": Words("{rows}: {failed} of {made} gave no number ({failure})"),
    "environment_changed": Words("changed since the baseline: {changes}"),
    "recently_changed": Words("changed on {since}, among the nights before: {changes}"),
    "packages_changed": Words("{packages}: gpuscale env diff A B"),
    "gpu_places": Words("{places}"),
    "busy_host": Words(_BUSY, caution=ONCE_IDLE),
    "busy_host_before": Words(_BUSY_BEFORE, caution=""),
    "seldom_busy_host": Words(_BUSY),
    "seldom_busy_host_before": Words(_BUSY_BEFORE),
    "unchecked_training": Words(
        "gpuscale cannot check that the ranks of a command train one model together: {cases}"
    ),
    "unit_error": Words(
        "{row}: an efficiency of {value} is hardly possible: if the host was busy or runs differ "
        "much, measure again once it is idle; if not, it is a unit error until proven otherwise, "
        "so check that the batch of each, threads and step time mean the same as on 1 {device}"
    ),
    "few_sessions": Words(
        "it is unknown how much sessions differ: {deviation} in {name} is assumed{up_to}; "
        "further sessions can tell",
        caution="",
    ),
    "close_sessions": Words(
        "all sessions of the baseline began within {span_s}: hours apart, they may differ by more",
        caution="",
    ),
    "assumed_spread": Words(
        "the baseline has too few sessions to show how they deviate: up to {deviation} is assumed"
    ),
    "slow_node": Words(
        "{since} ran on {name}, which is {loss} slower by itself",
        caution="measure on other nodes (gpuscale submit --nodelist), and see 'gpuscale history'",
    ),
    "nights_left_out": Words("left out: {nights}"),
}
_DEVICES = {"cuda": "NVIDIA GPUs", "rocm": "AMD GPUs", "cpu": "CPU ranks"}


def reason_text(entry: EntryVerdict) -> str:
    """Explain a row's verdict in one plain sentence."""
    return to_minutes(_said(WORDS[entry.reason.code].sentence, entry.reason, entry, entry.device))


def text_beyond_table(entry: EntryVerdict) -> str:
    """Explain a verdict; unless it is a loss, omit what the table shows (perhaps everything)."""
    reason, sentence = entry.reason, WORDS[entry.reason.code].beyond_table
    if sentence is None or entry.verdict.is_loss:
        return reason_text(entry)
    remedy = reason.facts.get("remedy")
    if remedy is not None and WORDS[remedy.code].beyond_table == "":
        reason = replace(reason, facts={**reason.facts, "remedy": None})
    return to_minutes(_said(sentence, reason, entry, entry.device)).removeprefix("; ")


def short_text(entry: EntryVerdict) -> str:
    """Explain a row's verdict in a few words; empty if its reason has no short form."""
    return to_minutes(_said(WORDS[entry.reason.code].short, entry.reason, entry, entry.device))


def statement_text(statement: Statement, device: str = "") -> str:
    """Return the sentence for a statement that belongs to no row, such as a note."""
    return to_minutes(_said(WORDS[statement.code].sentence, statement, None, device))


def parts_of(reason: Statement) -> Iterator[Statement]:
    """Yield a reason's remedy (if any) and the reason, then likewise for reasons nested in it."""
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
        then, now = (
            phrases.amount_text(end.value, spec.unit) for end in (metric.baseline, metric.current)
        )
        return f"{spec.words} {_rose_or_fell(change.value)}{of_step}, from {then} to {now}"
    if bound is None:
        return _SINGLE_RUN
    if metric.verdict is Verdict.OK:
        said = f"any rise is below {format_percent(bound)}{of_step}" if bound > 0 else "no rise"
        return f"{said}, with 95 % confidence"
    return f"{spec.words} changed by {found_change_text(change)}{of_step}, too uncertain to call"


def _rose_or_fell(change: float) -> str:
    return f"{'rose' if change > 0 else 'fell'} by {format_percent(abs(change))}"


def _moved(change: float) -> str:
    return "stayed the same" if abs(change) < _SMALLEST_SHOWN else _rose_or_fell(change)


def _field_text(value: object) -> str:
    """Format a configuration field: a shape as `1×28×28`, ranks per node as `2 + 2 or 3 + 1`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, frozenset):
        return " or ".join(" + ".join(map(str, placement)) for placement in sorted(value))
    return "×".join(map(str, value)) if isinstance(value, tuple) else str(value)


_FORMS: Mapping[str, Callable[[Any], str]] = {
    **dict.fromkeys(("allowed", "loss", "margin"), format_percent),
    **dict.fromkeys(("ok_bound", "significance", "tolerance"), format_percent),
    "p": rough_percent,
    **dict.fromkeys(("efficiency", "reference", "throughput"), _moved),
    "value": "{:.2f}".format,
    **dict.fromkeys(("before", "now"), lambda value: _DEVICES.get(value, str(value))),
    "all_made": lambda count: "the only run" if count == 1 else f"all {count} runs",
    "beside": lambda change: f"{format_percent(abs(change))} {'below' if change < 0 else 'above'}",
    "bound": lambda loss: rough_percent(loss) if loss < 0.01 else format_percent(loss),
    "change": found_change_text,
    "changed": lambda changes: (
        f" (changed that night: {'; '.join(map(environment_text, changes))})" if changes else ""
    ),
    "changes": lambda changes: "; ".join(map(environment_text, changes)),
    "packages": lambda count: f"{counted(count, 'package')} differ{'s' if count == 1 else ''}",
    "deviation": rough_percent,
    "tonight": lambda deviation: f" and these by {rough_percent(deviation)}",
    "difference": phrases.percent_text,
    "factor": lambda factor: f"{significant(factor, 2)} times",
    "failures": lambda counts: ", ".join(
        f"{count} {kind.replace('_', ' ')}" for kind, count in counts.items()
    ),
    "is_open_on_1": lambda is_open: ", which may be chance" if is_open else "",
    "load": phrases.load_text,
    "looked": lambda level: f"; looked at run by run, ok needs {format_percent(level)} confidence",
    "made": lambda count: counted(count, "run"),
    "names": listed,
    "needed": lambda count: counted(count, "further run"),
    "of_both": "about {}".format,
    "other_runs": lambda count: f", and {count} more such" if count else "",
    "others": lambda count: f" and {count} more" if count else "",
    "places": lambda places: "; ".join(f"{device_text(gpu)} is {at}" for gpu, at in places.items()),
    "as_runs": lambda share: f", {'' if share == 1 else 'half '}that of runs here",
    "up_to": lambda deviation: f"; if by over {rough_percent(deviation)}, the loss may be chance",
    "span_s": lambda seconds: counted(math.ceil(seconds / 60), "minute"),
    "too_few": lambda count: f"{counted(count, 'run')} {'is' if count == 1 else 'are'}",
}
"""Formatters of facts, keyed by fact name; by default, list items are joined with commas."""


def _said(sentence: str, statement: Statement, entry: EntryVerdict | None, device: str) -> str:
    """Fill in a sentence template with the formatted facts of the statement."""
    texts = {name: _fact_text(name, fact, entry, device) for name, fact in statement.facts.items()}
    texts["device"] = device_word(device)
    texts = dict.fromkeys(("up_to", "as_runs", "tonight", "is_open_on_1", "looked"), "") | texts
    texts["on_1"] = f" on 1 {texts['device']}, the reference of E," if "on_1" in texts else ""
    if entry is not None:
        texts |= {"n": str(entry.key.gpus), "gpus": devices_text(device, entry.key.gpus)}
        texts["rate"] = rate_word(entry.configuration)
    return sentence.format_map(texts)


def _fact_text(name: str, fact: Any, entry: EntryVerdict | None, device: str) -> str:
    if name == "remedy":
        return "" if fact is None else f"; {_said(WORDS[fact.code].sentence, fact, entry, device)}"
    if isinstance(fact, Statement):
        return _said(WORDS[fact.code].sentence, fact, entry, device)
    if isinstance(fact, EntryKey):
        return fact.label_on(device)
    if name == "rows":
        return ", ".join(phrases.row_texts(((key.name, key.gpus) for key in fact), device))
    if isinstance(fact, FieldChange):
        field = fact.name.replace("_", " ").replace("gpu", device_word(device))
        return f"{field}: {_field_text(fact.before)} → {_field_text(fact.after)}"
    if name in ("metric", "published", "quantity") and entry is not None:
        return _of_row(fact, name, entry)
    if name in _FORMS:
        return _FORMS[name](fact) if fact is not None else ""
    if isinstance(fact, list | tuple):
        return ", ".join(_fact_text("", each, entry, device) for each in fact)
    return str(fact)


def _of_row(fact: str, name: str, entry: EntryVerdict) -> str:
    """Format a fact about a row: the reason for a metric's verdict, or a quantity in words."""
    if name == "metric":
        (metric,) = (each for each in entry.metrics if each.metric.name == fact)
        return metric_reason(metric)
    if fact == QuantityName.EFFICIENCY:
        return f"E({entry.key.gpus})"
    if name == "published":
        return "the throughput"
    return f"the {rate_word(entry.configuration)} on {devices_text(entry.device, entry.key.gpus)}"
