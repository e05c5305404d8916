"""Simulations of the judgement with known truth, from which docs/evidence/validation.md is made."""
