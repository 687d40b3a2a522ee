"""One file per statistical guardrail: how its evidence grows window by window, and what it says."""
