"""Work that spans several jobs or sessions: nights, cluster profiles, job scripts and trials."""
