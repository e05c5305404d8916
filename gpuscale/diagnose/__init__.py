"""What a loss is put down to: values in, values out; no files, no output."""

from gpuscale.diagnose.diagnosis import diagnose

__all__ = ["diagnose"]
