"""Does gpuscale itself hold what it says: its overhead, its false alarms, and what it finds."""
