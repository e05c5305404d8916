"""Telemetry of the GPUs while a run is timed, sampled beside the ranks and not inside them."""
