"""The judgement on simulated nights whose truth is known, and docs/validation.md from it."""
