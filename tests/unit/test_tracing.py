"""Which requests are recorded, and what engines are told of it: W3C's trace context."""

import re

import pytest

from gateway.telemetry.record import SettledRequest
from gateway.telemetry.tracing import SPANS_MAX, Kind, Trace, Tracing, parsed
from tests.unit.test_metrics import record

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN_ID = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-01".encode()
UNSAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-00".encode()
LINE = re.compile(rb"traceparent: 00-([0-9a-f]{32})-([0-9a-f]{16})-01\r\n")


class Recorded:
    """What was recorded."""

    def __init__(self, share: float = 1.0) -> None:
        self.finished: list[tuple[Trace, SettledRequest]] = []
        self.tracing = Tracing(share, lambda *each: self.finished.append(each))

    def begin(self, **headers: bytes) -> Trace | None:
        """A request with these headers."""
        return self.tracing.begin({name.encode(): value for name, value in headers.items()})


def trace(**headers: bytes) -> Trace:
    """One that is recorded."""
    found = Recorded().begin(**headers)
    assert found is not None
    return found


def test_a_trace_that_the_client_records_goes_on() -> None:
    """Two traces of one request find neither the other's spans."""
    found = trace(traceparent=SAMPLED, tracestate=b"congo=t61")
    assert found.hex_id == TRACE_ID
    assert found.parent_id == int(SPAN_ID, 16)
    assert found.state == "congo=t61"


def test_what_the_client_does_not_record_is_not_recorded_here() -> None:
    """It decided for all behind it, and pays for none of it."""
    assert Recorded(share=1.0).begin(traceparent=UNSAMPLED) is None


def test_without_a_word_of_the_client_a_share_is_recorded() -> None:
    """All of a busy fleet's requests would drown the collector."""
    assert Recorded(share=0.0).begin() is None
    recorded = Recorded(share=0.25)
    found = [each for _ in range(4_000) if (each := recorded.begin()) is not None]
    assert 800 < len(found) < 1_200
    assert all(each.parent_id is None for each in found)
    assert len({each.trace_id for each in found}) == len(found)


@pytest.mark.parametrize(
    "header",
    [
        b"", b"00", SAMPLED[:-1], SAMPLED + b"-more", SAMPLED.upper(), b"ff" + SAMPLED[2:],
        b"00-" + b"0" * 32 + SAMPLED[35:], SAMPLED[:36] + b"0" * 16 + b"-01", SAMPLED + b"\n",
        b"zz" + SAMPLED[2:],
    ],
)  # fmt: skip
def test_what_is_no_traceparent_is_passed_over(header: bytes) -> None:
    """A client with a broken library still gets its answer, and a trace of its own."""
    assert parsed(header) is None
    found = trace(traceparent=header)
    assert found.parent_id is None


def test_a_later_version_may_say_more() -> None:
    """The standard asks for it."""
    later = b"01" + SAMPLED[2:]
    assert parsed(later) == parsed(later + b"-what-comes") == parsed(SAMPLED)


def test_an_engine_hangs_its_spans_below_the_stay_that_it_is() -> None:
    """Below the whole request one could not tell a retry from the first attempt."""
    found = trace(traceparent=SAMPLED)
    found.waits(1.0)
    lines = []
    for number in (1, 2):
        found.sends(float(number), f"gpu{number}", f"r-{number}")
        match = LINE.fullmatch(found.line())
        assert match is not None
        assert match[1].decode() == TRACE_ID
        lines.append(int(match[2], 16))
    engines = [span for span in found.spans if span.kind is Kind.ENGINE]
    assert [span.span_id for span in engines] == lines
    assert len({*lines, found.span_id, int(SPAN_ID, 16)}) == 4


def test_waits_and_stays_follow_one_another_without_a_gap() -> None:
    """A gap in the picture is time that nobody answers for."""
    recorded = Recorded()
    found = recorded.begin()
    assert found is not None
    found.waits(10.0)
    found.sends(11.0, "gpu0", "r-1")
    found.waits(12.0)
    found.sends(13.0, "gpu1", "r-2")
    found.leaves(14.0)
    found.finish(record(arrived_at=10.0, duration_s=9.0))
    assert [(each.kind, each.began_at, each.ended_at) for each in found.spans] == [
        (Kind.QUEUE, 10.0, 11.0),
        (Kind.ENGINE, 11.0, 12.0),
        (Kind.QUEUE, 12.0, 13.0),
        (Kind.ENGINE, 13.0, 14.0),
    ]
    assert [each for each, _ in recorded.finished] == [found]


def test_what_is_open_at_the_end_ends_with_the_request() -> None:
    """A client that leaves its place in the queue leaves no span without an end."""
    found = trace()
    found.waits(10.0)
    found.finish(record(arrived_at=10.0, duration_s=2.5))
    assert [each.ended_at for each in found.spans] == [12.5]


def test_a_request_has_a_bounded_number_of_spans() -> None:
    """One that is recalled all night must not fill the memory."""
    found = trace()
    for number in range(10 * SPANS_MAX):
        found.waits(float(number))
    assert len(found.spans) == SPANS_MAX
    assert LINE.fullmatch(found.line())
