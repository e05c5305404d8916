"""The judgement on simulated nights of known truth, and docs/evidence/validation.md from it."""
