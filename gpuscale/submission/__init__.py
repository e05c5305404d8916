"""From a cluster profile to a job: its size, its script, and handing it to the scheduler."""

from gpuscale.submission.allocation import Allocation, allocation_for
from gpuscale.submission.estimate import CostEstimate, estimate_cost
from gpuscale.submission.following import JobEnd, follow_job, submit_script
from gpuscale.submission.request import JobRequest
from gpuscale.submission.script import job_script

__all__ = [
    "Allocation",
    "CostEstimate",
    "JobEnd",
    "JobRequest",
    "allocation_for",
    "estimate_cost",
    "follow_job",
    "job_script",
    "submit_script",
]
