"""Results and verdicts as text and data: one file per format."""
