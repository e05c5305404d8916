"""Code that runs in the processes of ranks. No other package imports this package."""
