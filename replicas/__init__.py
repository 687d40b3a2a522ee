"""Tokens: the model workers, their engine, and the protocol between target and draft."""
