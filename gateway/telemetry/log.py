"""One JSON line for each settled request, written off the event loop; never a prompt or a key.

A disk that is slow or full costs lines, which are counted, and never a request.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from hashlib import blake2b
from queue import SimpleQueue

import msgspec

from gateway.telemetry.record import SettledRequest

LOGGER = logging.getLogger("fairgate.request_log")
RELOADS = logging.getLogger("fairgate.reload")
LINES_MAX = 10_000
"""Records that wait to be written; further ones are dropped."""
BATCH_MAX = 256
CLOSE_S = 2.0
STDOUT = "-"
STDOUT_FD = 1
MODE = 0o640
SESSION_BYTES = 8
BLOCK_MASK = 0xFFFF_FFFF
"""Numbers of JSON are exact up to 53 bits for many readers."""


class _Order:
    """What the writer is told between records."""


REOPEN, STOP = _Order(), _Order()


class RequestLog:
    """A file, or standard output, to which a thread writes."""

    def __init__(
        self,
        target: str,
        clock: Callable[[], float],
        *,
        lines_max: int = LINES_MAX,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        """`clock` is that of the records' instants. Raises OSError where it cannot be opened."""
        self.target = target
        self._clock = clock
        self._lines_max = lines_max
        self._write = write
        self._fd = _opened(target)
        self._queue: SimpleQueue[SettledRequest | _Order] = SimpleQueue()
        self._is_failing = False
        self._is_torn = False
        """Whether a line was written in part only."""
        self.written = 0
        self.dropped = {"queue": 0, "disk": 0}
        """Lines that were lost, since too many waited or since they could not be written."""
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._thread.start()

    def add(self, record: SettledRequest) -> None:
        """Write one line, soon; never waits."""
        if self._queue.qsize() >= self._lines_max:
            self.dropped["queue"] += 1
        else:
            self._queue.put(record)

    def reopen(self) -> None:
        """Go on in a file of the same name, after what was told before: it may have been moved."""
        self._queue.put(REOPEN)

    def close(self) -> None:
        """Write what waits, for `CLOSE_S` seconds at most."""
        self._queue.put(STOP)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while True:
            batch: list[SettledRequest] = []
            order: SettledRequest | _Order = self._queue.get()
            while not isinstance(order, _Order):
                batch.append(order)
                if len(batch) >= BATCH_MAX or self._queue.empty():
                    break
                order = self._queue.get()
            if batch:
                self._put(batch)
            if order is REOPEN:
                self._reopen()
            elif order is STOP:
                if self._fd != STDOUT_FD:
                    os.close(self._fd)
                return

    def _put(self, batch: list[SettledRequest]) -> None:
        ahead_s = time.time() - self._clock()
        lines = [line_of(record, ahead_s) for record in batch]
        data = (b"\n" if self._is_torn else b"") + b"".join(lines)
        sent = 0
        try:
            while sent < len(data):
                sent += self._write(self._fd, data[sent:])
        except OSError as error:
            kept = data[:sent].count(b"\n") - self._is_torn
            self._is_torn = data[:sent][-1:] not in (b"", b"\n") or (self._is_torn and not sent)
            self._lost(len(batch) - max(0, kept), error)
        else:
            self._is_torn = False
            self.written += len(batch)
            self._is_failing = False

    def _lost(self, lines: int, error: OSError) -> None:
        self.dropped["disk"] += lines
        if not self._is_failing:
            self._is_failing = True
            LOGGER.error("%s cannot be written, lines are lost meanwhile: %s", self.target, error)

    def _reopen(self) -> None:
        if self._fd == STDOUT_FD:
            return
        try:
            fresh = _opened(self.target)
        except OSError as error:
            LOGGER.error("%s cannot be opened anew, the old file goes on: %s", self.target, error)
            return
        os.close(self._fd)
        self._fd, self._is_torn, self._is_failing = fresh, False, False


def request_log(
    target: str | None, known: RequestLog | None, clock: Callable[[], float]
) -> RequestLog | None:
    """The log at `target`; `known` is opened anew, if it is that one, and else left as it is."""
    if known is not None and known.target == target:
        known.reopen()
        return known
    if target is None:
        return None
    try:
        return RequestLog(target, clock)
    except OSError as error:
        RELOADS.error("the request log cannot be opened, and is not written: %s", error)
        return None


def set_log_level(level: str) -> None:
    """Of the gateway's own messages; a name as of Python's `logging`."""
    logging.getLogger("fairgate").setLevel(level.upper())


def line_of(record: SettledRequest, ahead_s: float) -> bytes:
    """The line of a record; `ahead_s` turns its instants into Unix time."""
    line = msgspec.structs.replace(
        record,
        arrived_at=round(record.arrived_at + ahead_s, 6),
        session=None if record.session is None else _hashed(record.session),
        prefix=tuple([block & BLOCK_MASK for block in record.prefix]),
    )
    return msgspec.json.encode(line) + b"\n"


def _hashed(session: str) -> str:
    """Clients make up the names of sessions, and may say more in them than should be written."""
    return blake2b(session.encode(), digest_size=SESSION_BYTES).hexdigest()


def _opened(target: str) -> int:
    if target == STDOUT:
        return STDOUT_FD
    return os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, MODE)
