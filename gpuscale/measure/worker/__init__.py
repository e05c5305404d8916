"""The processes of ranks. No other package imports this package."""
