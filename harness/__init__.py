"""harness tells whether B is faster than A and still right, on a shared, noisy machine."""

__version__ = "0.1.0"
