"""A stream continued without sockets: the engine's bytes, a strand, and a client's ears."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from gateway.continuation import resume
from gateway.continuation.eligible import judged
from gateway.continuation.strand import Strand
from tests.support.breaking import CHAT, COMPLETIONS, Heard, told
from tests.support.token_engine import MODEL, PIECES, answer

Feed = Callable[[Strand, bytes], bytes]


def at_once(strand: Strand, data: bytes) -> bytes:
    """All bytes in one read."""
    return strand.chunk(data)


def in_pieces(*sizes: int) -> Feed:
    """Reads of these sizes, again and again."""

    def feed(strand: Strand, data: bytes) -> bytes:
        heard, turn = b"", 0
        while data:
            size = sizes[turn % len(sizes)]
            heard += strand.chunk(data[:size])
            data, turn = data[size:], turn + 1
        return heard

    return feed


def strand_for(path: str, asked: dict[str, Any]) -> Strand:
    """The strand of a request that can be continued."""
    verdict = judged(json.dumps(asked).encode(), sequences=1)
    assert verdict.obstacle is None
    return Strand(is_chat=path == CHAT, is_greedy=verdict.is_greedy, shows_ids=verdict.shows_ids)


def unsent(strand: Strand) -> int:
    """How many of the last kept ids have text that was not sent."""
    for dropped in range(strand.doubtful_ids):
        ids = json.loads(b"[%b]" % strand.window(dropped))
        if not b"".join(PIECES[each] for each in ids).decode("utf-8", "replace").endswith("\ufffd"):
            return dropped
    assert not strand.doubtful_ids
    return 0


def played(
    path: str,
    asked: dict[str, Any],
    cuts: Sequence[int],
    *,
    group: int = 1,
    feed: Feed = at_once,
) -> tuple[Heard, Strand]:
    """What a client hears of a stream whose replicas break after so many bytes each."""
    strand = strand_for(path, asked)
    heard = feed(strand, told(path, asked, group)[: cuts[0] if cuts else None])
    for number, cut in enumerate([*cuts[1:], None] if cuts else []):
        if not strand.can_go_on:
            break
        rest = resume.Rest(
            model=MODEL,
            ids=strand.cut(unsent(strand)),
            output_tokens=strand.kept_tokens,
            output_tokens_max=asked["max_tokens"] - strand.kept_tokens,
            priority=None,
        )
        body = json.loads(resume.body_of(rest, json.dumps(asked).encode()))
        strand.goes_on(b": continued replica=%d\n\n" % number)
        heard += feed(strand, b"".join(answer(COMPLETIONS, body, group))[:cut])
    if strand.is_finished and not strand.is_done:
        heard += strand.ending()
    return Heard(heard.decode()), strand
