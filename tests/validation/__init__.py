"""The judgement on simulated nights whose truth is known, and docs/evidence/validation.md from it."""
