"""The smallest workload: a pure-Python loop, with which the harness measures itself."""
