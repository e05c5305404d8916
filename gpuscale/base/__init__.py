"""Modules that import no other room of gpuscale: errors, units, text, the host, tables."""
