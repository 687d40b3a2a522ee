"""Judgement: what was seen, what it means, and what the rollout does about it."""
