"""What the GPUs did while a run was timed, sampled beside the ranks and not inside them."""
