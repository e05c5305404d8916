"""Why a row got its verdict, and what to know beside the rows: codes and numbers, no words."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto


class QuantityName(StrEnum):
    """A row is judged by one of these; the values are those of the JSON report."""

    THROUGHPUT_ON_1 = "throughput(1)"
    THROUGHPUT = "throughput(n)"
    EFFICIENCY = "E(n)"


class Finding(StrEnum):
    """The change behind a row that is not simply ok."""

    SINGLE_GPU_SLOWDOWN = "single-GPU slowdown"
    SCALING_LOSS = "scaling loss"
    SLOWER_TRAINING = "slower training"
    REFERENCE_FASTER = "only the single-GPU reference got faster"
    FASTER = "faster"


class ReasonCode(StrEnum):
    """Why a row got its verdict; `report.reason_words` has the words, and so the facts, of each."""

    NO_LOSS = auto()
    BOUNDED_LOSS = auto()
    MOVED = auto()
    MOVED_WITH_EFFICIENCY = auto()
    SCALING_LOST = auto()
    EACH_GPU_SLOWER = auto()
    REFERENCE_FASTER = auto()
    METRIC_LOST = auto()
    SINGLE_RUN = auto()
    LOSS_NOT_EXCLUDED = auto()
    WITHIN_MARGIN = auto()
    NOT_BEYOND_CHANCE = auto()
    UNKNOWN_END_MOVED = auto()
    SPEEDUP_UNKNOWN = auto()
    NEITHER_ON_1_GPU = auto()
    BASELINE_NOT_ON_1_GPU = auto()
    RESULTS_NOT_ON_1_GPU = auto()
    OTHER_BATCH_ON_1_GPU = auto()
    # What settles an inconclusive row.
    FURTHER_RUNS = auto()
    UNKNOWN_FURTHER_RUNS = auto()
    RUNS_DIFFER = auto()
    BASELINE_RUNS_DIFFER = auto()
    NIGHTS_DIFFER = auto()
    MORE_RUNS = auto()
    # Runs that are too few.
    TOO_FEW_VALID_RUNS = auto()
    TOO_FEW_OF_ALL_RUNS = auto()
    TOO_FEW_SINCE_LOOK = auto()
    TOO_FEW_TO_LOOK = auto()
    NOT_YET_CONFIRMED = auto()
    # What keeps a row from being judged.
    NOT_MEASURED = auto()
    ON_NEITHER_SIDE = auto()
    NO_ENTRY = auto()
    NO_ENTRY_ALIKE = auto()
    OTHER_MEASUREMENT = auto()
    OTHER_MACHINE = auto()
    MIXED_MACHINES = auto()
    ONLY_RUN_FAILED = auto()
    ALL_RUNS_FAILED = auto()
    # Beside a published figure.
    PUBLISHED_EXCEEDED = auto()
    PUBLISHED_MET = auto()
    PUBLISHED_MISSED = auto()
    PUBLISHED_UNCERTAIN = auto()
    SPEEDUP_REFERENCE = auto()
    ONLY_SPEEDUP_REFERENCE = auto()
    NO_PUBLISHED_REFERENCE = auto()
    NO_MEASURED_REFERENCE = auto()
    OTHER_PUBLISHED_REFERENCE = auto()


class NoteCode(StrEnum):
    """Things to know beside the rows."""

    EMPTY_BASELINE = auto()
    NO_VALID_RUN = auto()
    NO_ROW_LEFT = auto()
    IDLE_OVERRIDE = auto()
    ONE_ALLOCATION = auto()
    FEW_ALLOCATIONS = auto()
    ESTIMATED_SPREAD = auto()
    ESTIMATED_SPREAD_OF_OTHERS = auto()
    FEW_RUNS = auto()
    FEW_RUNS_OF_SEVERAL = auto()
    SAME_ALLOCATION = auto()
    DIFFERING_ALLOCATION = auto()
    PUBLISHED_WITHOUT_SPREAD = auto()
    PUBLISHED_ON_REAL_DATA = auto()
    PUBLISHED_WITHOUT_PRECISION = auto()
    FAILED_RUNS = auto()
    NOT_JUDGED = auto()
    UNIT_ERROR = auto()
    UNIT_ERROR_OF_SIDE = auto()
    EXPIRED_YESTERDAY = auto()
    EXPIRED = auto()
    OTHER_HOST = auto()
    HOST_HAS_OTHER_CPU = auto()
    HOST_HAS_MORE_GPUS = auto()


@dataclass(frozen=True, slots=True)
class Statement:
    """Something to be said, as a code and the facts that its words need."""

    code: ReasonCode | NoteCode
    facts: Mapping[str, object]
    """Text, numbers, several of them, and further statements, by name; changes are relative."""

    @classmethod
    def of(cls, code: ReasonCode | NoteCode, /, **facts: object) -> "Statement":
        """The statement with these facts."""
        return cls(code, facts)
