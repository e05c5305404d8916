"""A comparison in order and in words (`view`), and the formats that render it (`as_…`)."""
