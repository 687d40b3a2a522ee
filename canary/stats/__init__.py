"""Statistics that stay valid however often one looks: e-processes, e-detectors, confidence sequences."""
