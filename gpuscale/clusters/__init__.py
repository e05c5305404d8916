"""Cluster profiles: what a machine's scheduler must be told, as data files.

The shipped ones lie beside this module; a site adds its own as a TOML file (docs/clusters.md).
"""

from gpuscale.clusters.finding import find_profile, known_profiles, recognised_profile
from gpuscale.clusters.profile import (
    ClusterProfile,
    JobSettings,
    Judged,
    Measured,
    Node,
    Recognition,
    Scheduler,
)
from gpuscale.clusters.reading import parse_profile, read_profile

__all__ = [
    "ClusterProfile",
    "JobSettings",
    "Judged",
    "Measured",
    "Node",
    "Recognition",
    "Scheduler",
    "find_profile",
    "known_profiles",
    "parse_profile",
    "read_profile",
    "recognised_profile",
]
