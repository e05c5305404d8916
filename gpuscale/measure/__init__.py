"""How runs are made: ranks, launchers, schedulers, telemetry, the largest batch."""
