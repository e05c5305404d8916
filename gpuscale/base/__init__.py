"""Modules that import nothing else from gpuscale: errors, units, text, the host, tables."""
