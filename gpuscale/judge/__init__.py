"""Verdicts and causes, from values to values; no file is read or written here."""
