"""One night on one machine: what it keeps, how its faults are told apart, how it ends."""

from gpuscale.night.attempt import Attempt, Fault, faults_of
from gpuscale.night.failed_attempt import failed_attempt_json
from gpuscale.night.items import Items, read_items
from gpuscale.night.outcome import MEANINGS, NightExit, night_exit, night_meaning
from gpuscale.night.places import NightFolder, new_night, nights_folder
from gpuscale.night.record import record_text, retried_as
from gpuscale.night.retry import resubmission, suspects

__all__ = [
    "MEANINGS",
    "Attempt",
    "Fault",
    "Items",
    "NightExit",
    "NightFolder",
    "failed_attempt_json",
    "faults_of",
    "new_night",
    "night_exit",
    "night_meaning",
    "nights_folder",
    "read_items",
    "record_text",
    "resubmission",
    "retried_as",
    "suspects",
]
