"""What can go wrong while events are prepared: one exception a kind, each with its exit code.

Every message is one sentence: where, what was expected, what was found, what to do next.
"""


class EventsError(Exception):
    """Anything a user can meet in impl.events; `exit_code` is what the command line returns."""

    exit_code = 1

    def __init__(self, where, expected: str = "", found: str = "", next: str = ""):
        self.where, self.expected, self.found, self.next = str(where), expected, found, next
        super().__init__(self.where, expected, found, next)  # so that it survives pickling between processes

    def __str__(self) -> str:
        hint = f"; {self.next}" if self.next else ""
        return f"{self.where}: expected {self.expected}, found {self.found}{hint}"


class ConfigurationError(EventsError):
    """An option, a schema or a command that cannot be."""

    exit_code = 2


class SourceError(EventsError):
    """A source file that cannot be read to its end; `source` is its path."""

    exit_code = 3

    def __init__(self, where, expected: str = "", found: str = "", next: str = "", source: str = ""):
        super().__init__(where, expected, found, next)
        self.source = source
        self.args = (*self.args, source)


class BranchError(EventsError):
    """A branch that the schema wants and the files do not have, or not alike."""

    exit_code = 4


class CountError(EventsError):
    """Branches of one collection that disagree about how many objects an event has."""

    exit_code = 5


class NotFiniteError(EventsError):
    """NaN, infinity or an impossible angle where the policy is `error`."""

    exit_code = 6


class NoEventsError(EventsError):
    """Nothing to prepare: no file, empty trees, or everything dropped."""

    exit_code = 7


class TooManyNodesError(EventsError):
    """An event with more objects than `max_nodes` allows."""

    exit_code = 8


class WorkerError(EventsError):
    """A worker that died or handed back something else than its share."""

    exit_code = 9


class StorageError(EventsError):
    """The cache could not be written: disk full, no permission, file size limit."""

    exit_code = 10


class CacheError(EventsError):
    """A cache that does not exist, is damaged, or is not the expected one."""

    exit_code = 11


class PackageError(EventsError):
    """An optional package that this step needs is not installed."""

    exit_code = 12

    def __str__(self) -> str:
        return f"{self.where}: needs {self.expected}, which is not installed; {self.next}"
