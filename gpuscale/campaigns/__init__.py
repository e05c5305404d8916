"""Work over several jobs or sessions: nights, cluster profiles, job scripts."""
