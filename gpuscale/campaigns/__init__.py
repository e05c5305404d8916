"""Work that takes several jobs or sessions: nights, cluster profiles, job scripts."""
