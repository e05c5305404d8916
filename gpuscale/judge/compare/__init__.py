"""Judge results against a baseline, without reading or writing files."""

from gpuscale.judge.compare.comparison import Choice, compare, compare_sides

__all__ = ["Choice", "compare", "compare_sides"]
