"""Judging results against a baseline: values in, values out; no files, no output."""

from gpuscale.judge.compare.comparison import Choice, compare, compare_sides

__all__ = ["Choice", "compare", "compare_sides"]
