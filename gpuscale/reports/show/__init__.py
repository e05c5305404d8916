"""What results and baselines hold, and the formats of `gpuscale show` (`as_…`)."""
