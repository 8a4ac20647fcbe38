"""The messages of the worker protocol: what is accepted, and the sentence for what is not."""

import json

import pytest

from harness import protocol, worker

ITERATION = {"kind": "iteration", "phase": "steady", "index": 0, "seconds": 0.5, "cpu_seconds": 0.4}
FINGERPRINT = {"kind": "fingerprint", "work": 3, "digests": {"keys": "ab"}, "totals": {"sum": 1.5}}


def line(message):
    return json.dumps(message).encode()


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (protocol.Setup(), b'{"do":"setup"}\n'),
        (protocol.Iterate("warmup"), b'{"do":"iterate","phase":"warmup"}\n'),
        (protocol.Iterate("steady"), b'{"do":"iterate","phase":"steady"}\n'),
        (protocol.DescribeOutput(), b'{"do":"fingerprint"}\n'),
        (protocol.WriteValues("/x.npz"), b'{"do":"values","path":"/x.npz"}\n'),
        (protocol.Close(), b'{"do":"close"}\n'),
    ],
)
def test_commands_are_the_lines_of_the_specification(command, text):
    assert protocol.encode(command) == text


def test_the_workers_answers_are_what_the_harness_accepts(tmp_path):
    class Sums(worker.Workload):
        name = "sums"
        accepts = {"n": 10}

        def iterate(self):
            return {"units": 2, "work": 1, "counters": {"calls": 1}, "totals": {"sum": 45.0}}

        def fingerprint(self):
            return {"work": 1, "totals": {"sum": float("nan")}}

        def values(self, path):
            return {"rows": 4}

    served = worker._Served(Sums, {}, "a")
    lines = [json.dumps(worker._finite(message)).encode() for message in (
        served.header(), served.setup(), served.iterate("warmup"), served.fingerprint(), served.values("x"),
        served.close(),
    )]  # fmt: skip
    header = protocol.opening(lines[0])
    assert (header.workload, header.arm, header.parameters) == ("sums", "a", {"n": 10})
    answers = [
        protocol.answer(command, text)
        for command, text in zip(
            (
                protocol.Setup(),
                protocol.Iterate("warmup"),
                protocol.DescribeOutput(),
                protocol.WriteValues("x"),
                protocol.Close(),
            ),
            lines[1:],
        )
    ]
    assert [protocol.kind(answer) for answer in answers] == ["phase", "iteration", "fingerprint", "values", "closed"]
    assert answers[1].counters == {"calls": 1}
    assert answers[2].totals == {"sum": None}


def test_defaults_fill_what_an_iteration_leaves_out():
    found = protocol.answer(protocol.Iterate("steady"), line(ITERATION | {"later_field": 1}))
    assert (found.units, found.work, found.counters, found.totals) == (1, 0, {}, {})


KINDS = "header, error, phase, iteration, fingerprint, values, closed"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"Loading...", "expected one JSON object, found 'Loading...': JSON is malformed: invalid character (byte 0)"),
        (b"", "expected one JSON object, found '': Input data was truncated"),
        (b"[1]", f"expected a message whose kind is one of {KINDS}, found '[1]': Expected `object`, got `array`"),
        (
            b'{"kind":"result"}',
            f'expected a message whose kind is one of {KINDS}, found \'{{"kind":"result"}}\': '
            "Invalid value 'result' - at `$.kind`",
        ),
        (
            b'{"kind":"phase","name":"setup","seconds":-1,"cpu_seconds":0}',
            'expected the fields of \'phase\', found \'{"kind":"phase","name":"setup","seconds":-1,'
            '"cpu_seconds":0}\': Expected `float` >= 0.0 - at `$.seconds`',
        ),
    ],
)
def test_what_is_no_message_is_shown_beside_what_was_expected(text, sentence):
    with pytest.raises(protocol.ProtocolError) as caught:
        protocol.decode(text)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"seconds": None},
        {"seconds": "0.5"},
        {"cpu_seconds": -0.1},
        {"units": 0},
        {"work": -1},
        {"index": -1},
        {"index": 0.5},
        {"phase": "cold"},
        {"counters": {"rows": "many"}},
        {"totals": [1]},
    ],
)
def test_an_iteration_with_an_impossible_field_is_refused(change):
    with pytest.raises(protocol.ProtocolError, match=r"^expected"):
        protocol.answer(protocol.Iterate("steady"), line(ITERATION | change))


def test_an_answer_to_something_else_is_refused():
    with pytest.raises(protocol.ProtocolError, match="expected 'fingerprint' in answer to 'fingerprint', found 'itera"):
        protocol.answer(protocol.DescribeOutput(), line(ITERATION))
    with pytest.raises(protocol.ProtocolError, match="expected an iteration of phase 'warmup', found phase 'steady'"):
        protocol.answer(protocol.Iterate("warmup"), line(ITERATION))
    with pytest.raises(protocol.ProtocolError, match="expected 'header' first, found 'iteration'"):
        protocol.opening(line(ITERATION))


def test_an_error_is_an_answer_to_anything():
    error = line({"kind": "error", "where": "depth", "expected": "0 to 8", "found": "9"})
    assert protocol.answer(protocol.Setup(), error).where == "depth"
    assert protocol.opening(error).found == "9"


def test_bytes_of_no_text_are_shown_printable_and_short():
    assert protocol.shown(b"\x1b[31mred\xff\n") == "'?[31mred\\xff'"
    assert protocol.shown(b"x" * 500) == "'" + "x" * 80 + "…' (500 bytes)"


def test_metrics_are_found_among_what_a_command_prints():
    other = b'{"some": "log"}\n{broken\n  {"kind":"header"}\n'
    text = b"Hello\n" + line(ITERATION) + b"\n" + other + line(FINGERPRINT) + b"\n" + line(ITERATION | {"index": 1})
    iterations, fingerprint = protocol.printed(text)
    assert [iteration.index for iteration in iterations] == [0, 1]
    assert fingerprint.digests == {"keys": "ab"}
    assert protocol.printed(b"nothing\n") == ([], None)
