"""Load, costs and the prompts they are measured with."""
