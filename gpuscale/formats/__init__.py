"""Decoding of cluster profiles."""
