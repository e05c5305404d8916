"""Modules that import nothing else of gpuscale: errors, units, text, the host, two tables."""
