"""One HTML file for people: what was measured, judged and seen, and an index over nights."""
