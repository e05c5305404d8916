"""Seconds that a process waits for others to end before it uses force.

Each wait is long enough for the other processes to complete their own waits.

processes of a command    SIGTERM from the watcher of the command; SIGKILL after COMMAND_S
a rank or such a watcher  SIGKILL or SIGTERM, respectively, from the keeper; SIGKILL after RANK_S
the ranks of a run        an order from the launcher to the keepers; keepers end after RUN_S
the keepers of a session  end of their input; SIGTERM to `srun` or `mpirun` after KEEPERS_S,
                          and SIGKILL after STEP_S
"""

COMMAND_S = 5.0
RANK_S = 8.0
RUN_S = 20.0
KEEPERS_S = 10.0
STEP_S = 20.0
SAMPLER_S = 2.0
"""Wait for the sampler, which has no child processes: after SIGTERM, and again after SIGKILL."""
