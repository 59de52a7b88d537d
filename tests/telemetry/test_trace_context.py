"""Which trace contexts of callers are accepted."""

import pytest

from gatepost.telemetry.trace import TraceContext, context_in, outgoing, read_context
from tests.support.measuring import each

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"

PARENTS: dict[str, tuple[str, bool]] = {
    "sampled": (TRACEPARENT, True),
    "a later version": (f"01-{TRACE}-{SPAN}-01", True),
    "a later version with more": (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", True),
    "a later version that runs on": (f"01-{TRACE}-{SPAN}-01x", False),
    "version 00 with more": (f"{TRACEPARENT}-more", False),
    "version ff": (f"ff-{TRACE}-{SPAN}-01", False),
    "no trace": (f"00-{'0' * 32}-{SPAN}-01", False),
    "no span": (f"00-{TRACE}-{'0' * 16}-01", False),
    "capitals": (TRACEPARENT.upper(), False),
    "short": (f"00-{TRACE[1:]}-{SPAN}-01", False),
    "one flag": (f"00-{TRACE}-{SPAN}-1", False),
    "no hexadecimal": (f"00-{'g' * 32}-{SPAN}-01", False),
    "digits of another script": (f"00-{TRACE}-{SPAN}-0\u0661", False),
    "spaces": (f" {TRACEPARENT}", False),
    "a line more": (f"{TRACEPARENT}\n", False),
    "empty": ("", False),
    "long": (f"01-{TRACE}-{SPAN}-01-" + "a" * 600, False),
}


@pytest.mark.requirement("J-17")
@each("case", PARENTS)
def test_a_parent_is_read_strictly(case: str) -> None:
    """A malformed context is ignored (W3C Trace Context, section 3.2.2)."""
    text, is_good = PARENTS[case]

    assert (read_context(text) is not None) is is_good


STATES: dict[str, tuple[str, int]] = {
    "one member": ("rojo=00f067aa0ba902b7", 1),
    "two, spaced": ("rojo=1 , congo=t61", 2),
    "an empty member": ("rojo=1,,congo=2", 2),
    "of a tenant": ("fw529a3039@dt=FfAAAAAAAAAA", 1),
    "a key twice": ("rojo=1,rojo=2", 0),
    "capitals in a key": ("Rojo=1", 0),
    "no value": ("rojo", 0),
    "too many": (",".join(f"k{n}=1" for n in range(33)), 0),
    "too long": ("k=" + "a" * 600, 0),
    "a line break": ("rojo=1\r\nX-Evil: 1", 0),
}


@each("case", STATES)
def test_a_state_that_is_not_well_formed_is_left_out(case: str) -> None:
    """The parent still counts (section 3.3)."""
    text, members = STATES[case]
    trace = read_context(TRACEPARENT, text)

    assert trace is not None
    assert len(trace.state) == members


def test_flags_say_whether_the_caller_samples() -> None:
    """Only the last bit counts; the others are reserved."""
    flags = {text: read_context(f"00-{TRACE}-{SPAN}-{text}") for text in ("00", "01", "02", "ff")}

    assert {
        text: trace_context.sampled for text, trace_context in flags.items() if trace_context
    } == {
        "00": False,
        "01": True,
        "02": False,
        "ff": True,
    }


def test_contexts_are_read_from_headers() -> None:
    """Spaces around the value are allowed, as in HTTP; other bytes make it malformed."""
    trace = context_in({b"traceparent": f" {TRACEPARENT}\t".encode(), b"tracestate": b"a=1"})

    assert trace == TraceContext(int(TRACE, 16), int(SPAN, 16), True, (("a", "1"),))
    assert context_in({}) is None
    assert context_in({b"traceparent": b"\xff" * 55}) is None


def test_without_tracing_there_is_no_outgoing_context() -> None:
    """An outgoing request gets no context."""
    assert outgoing() is None
