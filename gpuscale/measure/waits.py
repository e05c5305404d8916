"""How long a process waits for another to end before using force; each wait covers those above.

processes of a command    SIGTERM from the process that watches it; SIGKILL after COMMAND_S
a rank, or that process   SIGKILL, or SIGTERM, from its keeper; SIGKILL after RANK_S
the ranks of a run        an order from the launcher to their keepers, which end after RUN_S
the keepers of a session  their input ends; SIGTERM to `srun` or `mpirun` after KEEPERS_S,
                          and SIGKILL after STEP_S
"""

COMMAND_S = 5.0
RANK_S = 8.0
RUN_S = 20.0
KEEPERS_S = 10.0
STEP_S = 20.0
SAMPLER_S = 2.0
"""Wait for the sampler to end after SIGTERM, and again after SIGKILL; it has no child processes."""
