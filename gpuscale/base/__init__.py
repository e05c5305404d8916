"""Basic modules that import nothing else from gpuscale: errors, units, text, host and tables."""
