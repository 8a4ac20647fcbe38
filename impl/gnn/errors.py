"""What can go wrong in impl.gnn that a user can meet: one exception a kind, each with its exit code.

Every message is one sentence: where, what was expected, what was found, what to do next.
"""


class GnnError(Exception):
    """Anything a user can meet; `exit_code` is what the command line returns."""

    exit_code = 1

    def __init__(self, where, expected: str, found: str, next: str = ""):
        self.where, self.expected, self.found, self.next = str(where), expected, found, next
        super().__init__(self.where, expected, found, next)

    def __str__(self) -> str:
        hint = f"; {self.next}" if self.next else ""
        return f"{self.where}: expected {self.expected}, found {self.found}{hint}"


class InputError(GnnError):
    """An option, a cache or a checkpoint that cannot be."""

    exit_code = 2


class PackageError(GnnError):
    """An optional package that this step needs is not installed."""

    exit_code = 2

    def __str__(self) -> str:
        return f"{self.where}: needs {self.expected}, which is not installed; {self.next}"


class LossError(GnnError):
    """A loss that is no number; `events` are the cache's event numbers of the batch."""

    exit_code = 3

    def __init__(self, where, expected: str, found: str, next: str = "", events=()):
        super().__init__(where, expected, found, next)
        self.events = list(events)


def exit_code(command) -> int:
    """Call a command; its expected failures become one line on standard error. Returns the exit code."""
    import sys

    from impl.events.errors import EventsError

    try:
        command()
    except GnnError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except EventsError as error:  # a cache that cannot be opened
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0
