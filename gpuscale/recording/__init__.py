"""Baselines from what was measured or published, and their changes: values in, values out."""
