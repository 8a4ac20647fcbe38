"""The implementations that harness measures; each is usable on its own."""
