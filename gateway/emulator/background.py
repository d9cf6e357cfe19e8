"""A response that nobody waits for: its tokens are counted, and its end goes into the archive."""

from gateway.emulator.archive import Archive
from gateway.emulator.envelope import Envelope
from gateway.emulator.refusals import Refusal
from gateway.emulator.responses_answer import finished_response
from gateway.emulator.text import Output


class Background:
    """Takes the tokens of one response in place of a request."""

    def __init__(self, envelope: Envelope, output: Output, archive: Archive) -> None:
        self._envelope = envelope
        self._output = output
        self._archive = archive
        self._n_tokens = 0

    def fail(self, refusal: Refusal) -> None:
        """Its engine core died; nobody is left who could say so, and it stays unfinished."""

    def put(self, choice: int, n_tokens: int, *, ended: bool) -> None:
        """A step gave the response so many tokens."""
        self._n_tokens += n_tokens
        if ended:
            _, text = self._output.take(self._n_tokens)
            finished_response(self._envelope, self._output, text, self._archive)
