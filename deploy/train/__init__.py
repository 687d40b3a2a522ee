"""Training of proposers: the target answers prompts, and a small network learns to say the same before it does."""
