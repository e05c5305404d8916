"""The ranks: what runs inside each training process. Nothing else imports this package."""
