"""A night on one machine: what was tried, whose fault it is, where it is kept, how it ends."""
