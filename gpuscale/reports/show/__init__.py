"""The formats of `gpuscale show` (`as_…`), and the tables that they share."""
