"""HTML pages for people: a report of results, and an index of nights."""
