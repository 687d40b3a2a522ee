"""What a proposer costs and may bring, computed from a model's config alone: a prior, never a verdict."""
