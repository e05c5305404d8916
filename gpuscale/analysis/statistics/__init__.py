"""Statistics of logarithms of step times: no files, no GPUs, no words."""
