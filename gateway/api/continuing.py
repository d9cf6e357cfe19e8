"""A broken stream on its way to another replica: may it go, with what body, and for how long.

What a stream is made of and where it can be cut is the business of `gateway.continuation`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from gateway.api.life import Life
from gateway.api.openai import engine_error
from gateway.api.passing import beginning_of
from gateway.api.reply import Reply
from gateway.api.routes import CHAT, COMPLETIONS
from gateway.api.surroundings import Surroundings
from gateway.continuation import resume
from gateway.continuation.eligible import judged
from gateway.continuation.obstacles import Obstacle
from gateway.continuation.strand import Strand
from gateway.core.messages import Reason, Usage
from gateway.errors import GatewayError, RefusedError, UpstreamFailedError, UpstreamTimeoutError
from gateway.upstream.sse import PlainMeter

CUTS_MAX = 8
"""So many places are tried where one event brought several tokens."""
DETOKENIZED_BYTES_MAX = 64 << 10
DETOKENIZE_S_MAX = 5.0
ASK_AGAIN_S = 0.25
"""Between two looks for a replica while there is none at all."""
REPLACEMENT = "\ufffd"
"""What an engine writes for bytes that are no whole character."""


class ContinueElsewhereError(Exception):
    """The replica failed, or is to be left, and `Life.strand` can go on on another one."""

    def __init__(self, replica: str, error: GatewayError, *, is_moved: bool = False) -> None:
        super().__init__(error.message)
        self.replica = replica
        self.error = error
        """For the client, should nobody take it."""
        self.is_moved = is_moved
        """Whether it was we who left."""


class CannotContinueError(UpstreamFailedError):
    """What was broken cannot be gone on with on this replica, nor on any other."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(f"The engine's answer broke off. {_clause(obstacle)}")


def may_go_on(life: Life, around: Surroundings) -> bool:
    """Whether tier and route of a request let it go on elsewhere, whatever its body says."""
    call, asked = life.call, life.asked
    assert call is not None
    assert asked is not None
    is_known = life.route is CHAT or life.route is COMPLETIONS
    return is_known and call.streams and around.continues(asked.tier)


def strand_for(life: Life, around: Surroundings, replica: str) -> Strand | None:
    """The strand of a stream about to begin; None where it is not to be, or cannot be, continued.

    `Life.obstacle` is set where its tier wants it and something stands against it.
    """
    call, asked = life.call, life.asked
    assert call is not None
    assert asked is not None
    if not call.streams or not around.continues(asked.tier):
        return None
    if life.route is not CHAT and life.route is not COMPLETIONS:
        life.obstacle = Obstacle.ROUTE
        return None
    verdict = life.verdict
    if verdict is None:
        text = call.body if call.outline is None else call.outline.text
        verdict = life.verdict = judged(text, sequences=call.sequences)
    life.obstacle = verdict.obstacle
    if life.obstacle is None and not around.fleet.tells_token_ids(replica):
        life.obstacle = Obstacle.ENGINE
    if life.obstacle is not None:
        return None
    return Strand(
        is_chat=life.route is CHAT, is_greedy=verdict.is_greedy, shows_ids=verdict.shows_ids
    )


async def rest_of(life: Life, around: Surroundings, replica: str) -> bytes:
    """The body with which `replica` goes on. Raises CannotContinueError and UpstreamBrokenError."""
    call, asked, strand = life.call, life.asked, life.strand
    assert call is not None
    assert asked is not None
    assert strand is not None
    dropped = await _unsent_ids(life, around, replica, strand)
    ids = strand.cut(dropped)
    if strand.standing is not None:
        raise CannotContinueError(strand.standing)
    left = call.output_tokens_max
    if left is None:
        # For a chat an engine takes what its context leaves; for a completion it takes 16.
        context = around.fleet.context_tokens(replica, life.model)
        if context is None:
            raise CannotContinueError(Obstacle.CONTEXT)
        left = context - strand.prompt_tokens
    rest = resume.Rest(
        model=life.model,
        ids=ids,
        output_tokens=strand.kept_tokens,
        output_tokens_max=max(1, left - strand.kept_tokens),
        priority=around.engine_priority(replica, asked.tier),
        cache_salt=None if life.salt is None else life.salt.at(replica),
    )
    return resume.body_of(rest, call.body)


def resumed(life: Life) -> None:
    """`Life.replica` goes on with the strand: its client reads so in a comment before the end."""
    assert life.strand is not None
    life.continuations += 1
    life.strand.goes_on(b": continued replica=%b\n\n" % life.replica.encode("ascii", "replace"))


def explained(error: GatewayError, obstacle: Obstacle | None) -> GatewayError:
    """`error`, with the reason for which the stream ends here."""
    if obstacle is None or not isinstance(error, UpstreamFailedError | UpstreamTimeoutError):
        return error
    return type(error)(f"{error.message} {_clause(obstacle)}")


def end_of(strand: Strand) -> bytes:
    """What a stream lacks that ended.

    Raises UpstreamFailedError for one that is not complete, EngineRefusedError for the client's
    own fault.
    """
    if strand.is_done:
        return b""
    if strand.is_finished:
        return strand.ending()
    if strand.error is None:
        raise UpstreamFailedError("The engine ended the stream without finishing it.")
    raise engine_error(200, strand.error).as_error()


def usages_of(strand: Strand, told: Usage | None) -> tuple[Usage, Usage]:
    """What the latest part took, which its engine may have `told`; and all parts together."""
    part = told
    if part is None or not part.prompt_tokens:
        produced = 0 if told is None else told.output_tokens
        part = Usage(
            prompt_tokens=strand.prompt_tokens, output_tokens=max(strand.part_tokens, produced)
        )
    if not strand.base_tokens:
        return part, part
    output_tokens = strand.base_tokens + part.output_tokens
    return part, Usage(prompt_tokens=strand.prompt_tokens, output_tokens=output_tokens)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a broken stream looks for a replica."""

    wait_s: Callable[[], float]
    keepalive_after_s: float
    clock: Callable[[], float]

    async def outlasts(self, refused: RefusedError, life: Life, reply: Reply) -> bool:
        """Whether to ask again after a refusal; waits a moment first.

        Only where there is no replica at all: the scheduler itself waits for a busy one.
        """
        now = self.clock()
        left_s = life.broke_at + self.wait_s() - now
        if refused.reason is not Reason.NO_REPLICA or left_s <= 0:
            return False
        if now - life.told_at >= self.keepalive_after_s:
            life.told_at = now
            await reply.queued(1, None)
        await asyncio.sleep(min(ASK_AGAIN_S, left_s))
        return True


def _clause(obstacle: Obstacle) -> str:
    return f"It could not be continued on another replica: {obstacle.value}."


async def _unsent_ids(life: Life, around: Surroundings, replica: str, strand: Strand) -> int:
    """How many of the last kept ids have no text yet that was sent."""
    doubtful = strand.doubtful_ids
    for dropped in range(min(doubtful, CUTS_MAX)):
        text = await _detokenized(life, around, replica, strand.window(dropped))
        if not text.endswith(REPLACEMENT):
            return dropped
    if doubtful:
        raise CannotContinueError(Obstacle.CUT)
    return 0


async def _detokenized(life: Life, around: Surroundings, replica: str, ids: bytes) -> str:
    """The text of `ids`, by the engine. Raises CannotContinueError, UpstreamBrokenError."""
    body = b'{"model":%b,"tokens":[%b]}' % (orjson.dumps(life.model), ids)
    try:
        async with asyncio.timeout(DETOKENIZE_S_MAX):
            answer = await around.fleet.client(replica).send(
                b"/detokenize",
                body,
                headers=b"content-type: application/json\r\n",
                meter=PlainMeter(around.clock),
            )
            try:
                data = await beginning_of(answer, DETOKENIZED_BYTES_MAX)
            finally:
                answer.close()
    except TimeoutError:
        raise CannotContinueError(Obstacle.CUT) from None
    try:
        told = orjson.loads(data)
    except orjson.JSONDecodeError:
        told = None
    text = told.get("prompt") if isinstance(told, dict) and answer.status == 200 else None
    if not isinstance(text, str):
        raise CannotContinueError(Obstacle.CUT)
    return text
