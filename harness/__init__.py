"""harness tells whether B is faster than A and still right, on a shared, noisy machine."""

__version__ = "0.1.0"
__all__ = ["__version__", "compare"]


def __getattr__(name: str):
    """`harness.compare` is imported when it is asked for: the command line and the arms must start without it."""
    if name == "compare":
        from harness.notebook import compare

        return compare
    raise AttributeError(f"module 'harness' has no attribute '{name}'")
