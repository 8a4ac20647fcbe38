"""Other tools' results in, ours out: one module a format, and the comparison of two samples that were not paired."""
