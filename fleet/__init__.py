"""The words that every part shares: requests, tokens, traffic, errors, time, configuration, metrics."""
