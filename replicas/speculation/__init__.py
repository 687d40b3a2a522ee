"""Proposing and accepting, without a clock, a socket or a tensor."""
