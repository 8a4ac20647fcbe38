"""`python -m harness`, and the console script `harness`."""

import sys


def main() -> None:
    """Run the command line; Windows is refused with a sentence."""
    if sys.platform == "win32":
        sys.exit("harness: expected Linux or macOS, found Windows; use WSL 2")
    from harness import interrupts

    interrupts.watch()
    from harness.cli import cli

    cli()


if __name__ == "__main__":
    main()
