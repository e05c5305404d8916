"""Judging results against a baseline: values in, values out; no files, no output."""

from gpuscale.judge.compare.comparison import compare

__all__ = ["compare"]
