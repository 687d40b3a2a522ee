"""One model, many sequences: schedule, forward, accept, emit."""
