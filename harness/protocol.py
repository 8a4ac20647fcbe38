"""The worker protocol, version 1: the messages that the harness and an arm exchange. This text is its specification.

An arm is a program that the harness starts with HARNESS_PROTOCOL=1 in its environment. It reads commands on standard
input and writes answers on the standard output it was started with; both are UTF-8, one JSON object a line, ended by
a newline, without NaN or Infinity (null stands for them). Nothing else may appear on that stream: an arm that runs code
which prints moves the stream aside first and points file descriptor 1 at standard error, which is drained and
whose end is kept for the record. Without HARNESS_PROTOCOL=1 the same program runs by hand.

The harness speaks, the arm answers with exactly one line; it never speaks unasked but for `header` and `error`.

=====================================  ============================================================================
command                                answer
=====================================  ============================================================================
(at start)                             `header`: schema, workload, arm, parameters, accepts, inputs, config_digest,
                                       clock, environment
(before the first iteration, and in    `error`: where, expected, found, next; then exit 2. A configuration error
answer to "values")
{"do":"setup"}                         `phase`: name "setup", seconds, cpu_seconds
{"do":"iterate","phase":"warmup"}      `iteration`: phase, index, seconds, cpu_seconds, units, work, counters, totals
{"do":"iterate","phase":"steady"}      the same; index counts from 0 in each phase
{"do":"fingerprint"}                   `fingerprint`: work, digests, totals, of the last iteration's output
{"do":"values","path":P}               `values`: path; an .npz with the values of the last iteration's output, or of
                                       a model's training, lies there; never timed, asked for after an iteration
{"do":"close"}                         `closed`, then exit 0
end of standard input                  the harness is gone: end at once
=====================================  ============================================================================

Fields
------
kind : which message this is
schema : int                1
workload, arm : str         the workload's name; the arm's name as it was given, or null
parameters : object         the effective parameters, defaults filled in
accepts : object            parameter -> default
inputs : list               {name, bytes, digest} of every file the job reads; arms must not differ in them
config_digest : str         digest of whatever else determines the job; arms must not differ in it
clock : str                 "wall", or "scripted" where a test arm states its times
environment : object        what was found to change speed; `libraries` in it is a list of {name, path, digest,
                            source_digest, tree_digest} of the shared libraries really loaded
seconds : float, s          at least 0, at most the harness's own time around the exchange
cpu_seconds : float, s      at least 0; the arm's process with all threads and its waited-for children
units : float               above 0; what a per-unit metric divides by
work : float                at least 0; how many records, rows, events… came out
counters : object           name -> number
totals : object             name -> number or null; compared within a tolerance
digests : object            name -> hexadecimal text; compared to the last bit

Values
------
What an arm writes to `path` (it ends in .npz) with numpy.savez; plain arrays, no pickles. It is one of two kinds, and
its arrays say which. Other arrays in it are ignored. A file that breaks these rules is a configuration error.

A *map* (any result with an error bar) has
    key : whole numbers (n,)        which voxel, bin or row; each once. The arms need not have the same keys
    value : float (n,)              the result
    variance : float (n,)           its variance, at least 0; 0: no error bar, counted but not judged
    weight : float (n,)             how much the entry counts, at least 0. At 0 there is no entry: value may be NaN
    contributors : float (n,)       optional: samples behind the value, as the error bar counts them; at least 1

A *model* has
    score : float (n, C) or (n,)    one logit a class, the largest wins; or the log odds of class 1, above 0 it wins.
                                    Not probabilities: the log loss takes the logarithm of their softmax
    label : whole numbers (n,)      the truth, 0 ... C-1; 0 or 1 for (n,)
    weight : float (n,)             the event's weight, at least 0
    key : whole numbers (n,)        which event, as its number in the input: once for each seed, in any order
    seed : whole number, or (n,)    what the run was seeded with

The arms of a model are paired by seed and key: for a seed both must hold out the same keys with the same labels and
weights. Where the harness varies the seed it sets the parameter `seed`, the same in both arms, and expects that seed in
the file. An arm that is trained to be judged trains from its seed when values are asked for, not before.

Fields that this version does not know are ignored. A command arm that does not speak the protocol may print
`iteration` and `fingerprint` lines among its other output; they are taken as its metrics and fingerprint.
"""

from typing import Annotated, Any, Literal

import msgspec

VERSION = 1
#: bytes; a longer line is a broken protocol
LONGEST_LINE = 64 << 20

Time = Annotated[float, msgspec.Meta(ge=0)]
Amount = Annotated[float, msgspec.Meta(ge=0)]


class ProtocolError(Exception):
    """A line that is no message of the protocol; the text says what was expected and what was found."""


# ------------------------------------------------------------------------------------- what the harness says


class Command(msgspec.Struct, tag_field="do", frozen=True):
    """Base of what the harness says."""


class Setup(Command, tag="setup"):
    """Do everything that is done once."""


class Iterate(Command, tag="iterate"):
    """Do one unit of work."""

    phase: Literal["warmup", "steady"]


class DescribeOutput(Command, tag="fingerprint"):
    """Describe the last iteration's output."""


class WriteValues(Command, tag="values"):
    """Write the values of a map or of a model to `path`."""

    path: str


class Close(Command, tag="close"):
    """Release everything and end."""


# ------------------------------------------------------------------------------------- what the arm says


class Message(msgspec.Struct, tag_field="kind", kw_only=True):
    """Base of what an arm says."""


class Input(msgspec.Struct):
    """A file that the job reads."""

    name: str
    bytes: int
    digest: str


class Header(Message, tag="header"):
    """What an arm is, at start."""

    schema: int
    workload: str
    arm: str | None = None
    parameters: dict[str, Any] = {}
    accepts: dict[str, Any] = {}
    inputs: list[Input] = []
    config_digest: str = ""
    clock: Literal["wall", "scripted"] = "wall"
    environment: dict[str, Any] = {}


class Error(Message, tag="error"):
    """Bad input, before the first iteration."""

    where: str
    expected: str
    found: str
    next: str = ""


class Phase(Message, tag="phase"):
    """A part of an arm's life outside the iterations."""

    name: str
    seconds: Time
    cpu_seconds: Time


class Iteration(Message, tag="iteration"):
    """One timed repetition."""

    phase: Literal["warmup", "steady"]
    index: Annotated[int, msgspec.Meta(ge=0)]
    seconds: Time
    cpu_seconds: Time
    units: Annotated[float, msgspec.Meta(gt=0)] = 1
    work: Amount = 0
    counters: dict[str, float] = {}
    totals: dict[str, float | None] = {}


class Fingerprint(Message, tag="fingerprint"):
    """What the last iteration's output must agree on."""

    work: Amount
    digests: dict[str, str] = {}
    totals: dict[str, float | None] = {}


class Values(Message, tag="values"):
    """Values for accuracy were written."""

    path: str


class Closed(Message, tag="closed"):
    """Everything is released; the process ends."""


AnyMessage = Header | Error | Phase | Iteration | Fingerprint | Values | Closed
_decoder = msgspec.json.Decoder(AnyMessage)
_encoder = msgspec.json.Encoder()

#: which message answers which command
ANSWERS: dict[type[Command], type[Message]] = {
    Setup: Phase,
    Iterate: Iteration,
    DescribeOutput: Fingerprint,
    WriteValues: Values,
    Close: Closed,
}


def kind(message: Message | type[Message]) -> str:
    """The word in a message's `kind`."""
    return message.__struct_config__.tag


def encode(command: Command) -> bytes:
    """A command as one line, newline included."""
    return _encoder.encode(command) + b"\n"


def shown(line: bytes, limit: int = 80) -> str:
    """A line as it may stand in an error sentence: printable, shortened."""
    text = line.decode("utf-8", "backslashreplace").strip()
    text = "".join(c if c.isprintable() else "?" for c in text)
    return f"'{text}'" if len(text) <= limit else f"'{text[:limit]}…' ({len(line)} bytes)"


def decode(line: bytes) -> AnyMessage:
    """One message from one line; raises ProtocolError with what was expected and found."""
    try:
        return _decoder.decode(line)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"expected {_expectation(line)}, found {shown(line)}: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"expected one JSON object, found {shown(line)}: {error}") from None


def _expectation(line: bytes) -> str:
    """What a line that is JSON but no message should have been, from its `kind`."""
    kinds = [kind(message) for message in AnyMessage.__args__]
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError:
        found = None
    if isinstance(found, dict) and found.get("kind") in kinds:
        return f"the fields of '{found['kind']}'"
    return "a message whose kind is one of " + ", ".join(kinds)


def answer(command: Command, line: bytes) -> Message:
    """The answer to a command; raises ProtocolError for any other line. An `error` message is returned as it is."""
    message = decode(line)
    if isinstance(message, Error):
        return message
    expected = ANSWERS[type(command)]
    if not isinstance(message, expected):
        raise ProtocolError(
            f"expected '{kind(expected)}' in answer to '{kind(command)}', found '{kind(message)}': {shown(line)}"
        )
    if isinstance(message, Iteration) and message.phase != command.phase:
        raise ProtocolError(f"expected an iteration of phase '{command.phase}', found phase '{message.phase}'")
    return message


def opening(line: bytes) -> Header | Error:
    """The first line of an arm; raises ProtocolError for any but `header` and `error`, or another schema."""
    message = decode(line)
    if isinstance(message, Error):
        return message
    if not isinstance(message, Header):
        raise ProtocolError(f"expected 'header' first, found '{kind(message)}': {shown(line)}")
    if message.schema != VERSION:
        raise ProtocolError(f"expected schema {VERSION}, found schema {message.schema}; use a matching harness")
    return message


def printed(output: bytes) -> tuple[list[Iteration], Fingerprint | None]:
    """Metrics and fingerprint among what a command printed; all other lines are its own business.

    Returns the iterations in order and the last fingerprint, or None.
    """
    iterations, fingerprint = [], None
    for line in output.splitlines():
        if not line.lstrip().startswith(b"{"):
            continue
        try:
            message = decode(line)
        except ProtocolError:
            continue
        if isinstance(message, Iteration):
            iterations.append(message)
        elif isinstance(message, Fingerprint):
            fingerprint = message
    return iterations, fingerprint
