"""May this proposer work for this target? Everything that can be known before a weight is loaded."""
