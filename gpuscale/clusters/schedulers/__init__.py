"""The schedulers that jobs are submitted to: one file each, and its line here."""

from collections.abc import Mapping

from gpuscale.clusters.schedulers.base import Scheduler
from gpuscale.clusters.schedulers.lsf import Lsf
from gpuscale.clusters.schedulers.pbs import Pbs
from gpuscale.clusters.schedulers.sge import Sge
from gpuscale.clusters.schedulers.slurm import Slurm

SCHEDULERS: Mapping[str, Scheduler] = {
    scheduler.name: scheduler for scheduler in (Slurm(), Sge(), Lsf(), Pbs())
}
"""By the names that profiles have for them."""


def scheduler_of_job(environment: Mapping[str, str]) -> Scheduler | None:
    """The scheduler in one of whose jobs a process with these variables is; None for none."""
    return next((one for one in SCHEDULERS.values() if one.is_here(environment)), None)
