"""Statistics of log step times, without access to files or GPUs."""
