"""Workloads: cases, commands and the lines they print, injected faults, run defaults."""
