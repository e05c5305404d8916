"""Make runs: ranks, launchers, schedulers, telemetry, and the search for the largest batch."""
