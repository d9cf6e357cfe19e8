"""How a request was served, in headers: what its client is told beside the engine's answer."""

from gateway.api.life import Life
from gateway.api.reply import Reply
from gateway.upstream.connection import Answer


def describe(life: Life, reply: Reply, answer: Answer) -> None:
    """Add the headers; without effect once the first ones are out."""
    if answer.content_encoding is not None:
        reply.add_header(b"content-encoding", answer.content_encoding)
    reply.add_header(b"x-fairgate-queue-ms", b"%d" % round(life.waited_s * 1000))
    reply.add_header(b"x-fairgate-replica", life.replica.encode("latin-1", "replace"))
    if life.position:
        reply.add_header(b"x-fairgate-position", b"%d" % life.position)
    if life.alias is not None:
        reply.add_header(b"x-fairgate-model", life.model.encode("latin-1", "replace"))
