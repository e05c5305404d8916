"""The registry of the batch schedulers that gpuscale supports."""

from collections.abc import Mapping
from shutil import which

from gpuscale.measure.schedulers.lsf import Lsf
from gpuscale.measure.schedulers.pbs import Pbs
from gpuscale.measure.schedulers.scheduler import Scheduler
from gpuscale.measure.schedulers.sge import Sge
from gpuscale.measure.schedulers.slurm import Slurm

SCHEDULERS: Mapping[str, Scheduler] = {
    scheduler.name: scheduler for scheduler in (Slurm(), Sge(), Lsf(), Pbs())
}


def scheduler_of_job(environment: Mapping[str, str]) -> Scheduler | None:
    """Return the scheduler of the job that set these environment variables; None outside a job."""
    return next((one for one in SCHEDULERS.values() if one.is_here(environment)), None)


def scheduler_here() -> Scheduler | None:
    """Return the scheduler whose commands are on PATH, or None if there is none."""
    for scheduler in SCHEDULERS.values():
        # Grid Engine and PBS share `qsub` and `qstat`; `qacct` is Grid Engine's alone.
        if all(which(words[0]) for words in (scheduler.submit_command, *scheduler.state_commands)):
            return scheduler
    return None


def nodes_of_job(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes of the job that set these environment variables; empty if unknown."""
    found = (scheduler.nodes(environment) for scheduler in SCHEDULERS.values())
    return next(filter(None, found), ())
