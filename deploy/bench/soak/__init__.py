"""`make bench-soak`: an hour's worth of mixed requests on every proposer, and what of it all stays behind."""
