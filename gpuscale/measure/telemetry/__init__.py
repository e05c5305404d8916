"""Telemetry of the GPUs during a run, sampled by a separate process."""
