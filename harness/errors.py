"""The exceptions that a user can meet, one per exit code."""


class HarnessError(Exception):
    """Base of all; carries the exit code that the command line ends with."""

    exit_code = 1


class ConfigurationError(HarnessError):
    """Usage, scenario, arm or input is wrong: nothing was measured, nothing was written. Exit 2."""

    exit_code = 2


class UnfitError(HarnessError):
    """Nothing can be measured: a program is missing, a build failed. Exit 4."""

    exit_code = 4


class Interrupted(HarnessError):
    """The user stopped the comparison; what was measured is in the record. Exit 130."""

    exit_code = 130


def sentence(where: str, expected: str, found: str, next: str = "") -> str:
    """The one form of an error sentence: where, what was expected, what was found, what to do next."""
    return f"{where}: expected {expected}, found {found}" + (f"; {next}" if next else "")
