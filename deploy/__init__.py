"""Assembly: the only package that knows Ray."""
