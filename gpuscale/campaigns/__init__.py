"""Work across jobs or sessions: nightly runs, cluster profiles, job scripts and trials."""
