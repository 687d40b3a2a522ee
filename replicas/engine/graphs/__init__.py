"""Whole decoding steps as one launch: CUDA graphs of the layers, one for each padded shape of a step."""
