"""Verdicts on results, and the causes of losses; nothing here reads or writes a file."""
