"""The view of a comparison (`view`), and the formats that render it (`as_…`)."""
