"""Find which changes make training slower: trials of mixed environments, measured in turn."""
