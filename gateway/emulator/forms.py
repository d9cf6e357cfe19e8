"""Which module writes the answer of which kind of call.

Decides nothing else; each form has its own way of being whole and of being a stream.
"""

from collections.abc import Sequence

import orjson

from gateway.emulator.archive import Archive
from gateway.emulator.audio_answer import SpeechChunks, speech_body
from gateway.emulator.bodies import answer_body
from gateway.emulator.chunks import Chunks
from gateway.emulator.envelope import Envelope, Said, Writer
from gateway.emulator.messages_answer import MessageEvents, message_body
from gateway.emulator.responses_answer import ResponseEvents, finished_response

ID_PREFIXES = {
    "chat": "chatcmpl-",
    "completion": "cmpl-",
    "message": "chatcmpl-",
    "transcription": "transcribe-",
    "translation": "translate-",
}
"""Of the answer's id, before the id of the request; a response has one of its own."""


def writer_of(envelope: Envelope, choices: int, archive: Archive) -> Writer:
    """The writer of a stream."""
    match envelope.call.form:
        case "chat" | "completion":
            return Chunks(envelope, choices)
        case "message":
            return MessageEvents(envelope)
        case "response":
            return ResponseEvents(envelope, archive)
        case "transcription" | "translation":
            return SpeechChunks(envelope)


def body_of(envelope: Envelope, said: Sequence[Said], archive: Archive) -> bytes:
    """The answer that is not streamed."""
    match envelope.call.form:
        case "chat" | "completion":
            return answer_body(envelope, said)
        case "message":
            return message_body(envelope, said[0])
        case "response":
            output, _, text = said[0]
            return orjson.dumps(finished_response(envelope, output, text, archive))
        case "transcription" | "translation":
            return speech_body(envelope, said[0])
