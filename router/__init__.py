"""Requests: from HTTP to a path and a replica, and back."""
