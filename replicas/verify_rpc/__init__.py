"""The verify stream between target and draft: the one home of gRPC among the two."""
