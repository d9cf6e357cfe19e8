"""From messages to bytes and back. What the bytes mean, and how they travel, is not known here.

Written as plain tuples and read as checked rows: each is the quickest way in its direction.
"""

from array import array
from collections.abc import Sequence
from itertools import takewhile
from typing import Final, assert_never

from msgspec import MsgspecError
from msgspec.msgpack import Decoder, Encoder

from gateway.cluster import rows
from gateway.cluster.messages import (
    Astray,
    Beat,
    Decided,
    Happened,
    Led,
    Left,
    Message,
    OfOne,
    Open,
    Placed,
    Ruling,
    Synced,
    Told,
)
from gateway.core.messages import (
    Arrived,
    Bounced,
    Cancelled,
    Finished,
    FirstToken,
    Granted,
    MoveWanted,
    Progressed,
    RecallDone,
    Recalled,
    RecallTooLate,
    Refused,
    Request,
    Usage,
)

LOW_BITS: Final = 32
"""Of the hash of a block: what is above is the same in all of one prompt (`api/prefix.py`)."""
LOW: Final = (1 << LOW_BITS) - 1

_encoder = Encoder()
_decoder = Decoder(rows.Batch)


Place = tuple[str, int, int, int]


class WireError(Exception):
    """These bytes are no message of this version."""


def encoded(sender: str, messages: Sequence[Message]) -> bytes:
    """`messages`, all by `sender`, as bytes."""
    return _encoder.encode((sender, [_tuple_of(each) for each in messages]))


def decoded(payload: bytes) -> list[Message]:
    """What `encoded` was given. Instants are 0. Raises WireError for anything else."""
    try:
        sender, found = _decoder.decode(payload)
    except (MsgspecError, RecursionError) as error:
        raise WireError(str(error)) from None
    return [_message_of(each, sender) for each in found]


def _tuple_of(message: Message) -> tuple[object, ...]:
    if isinstance(message, Told):
        event = message.event
        place = (message.pool, message.epoch, message.session, message.number)
        if isinstance(event, Arrived):
            return (rows.ARRIVED, *place, message.ago_s, _request_tuple(event.request))
        if isinstance(event, Progressed):
            ago_s, tokens = message.ago_s, event.output_tokens
            return (rows.PROGRESSED, *place, ago_s, event.replica, tokens, event.held)
        return _event_tuple(event, place)
    if isinstance(message, Decided):
        place = (message.pool, message.epoch, message.session, message.number)
        return _decision_tuple(message.decision, place)
    if isinstance(message, Beat):
        return (rows.BEAT, message.pool, message.epoch, message.session, message.number)
    if isinstance(message, Led):
        return (rows.LED, message.pool, message.epoch, message.session, message.number)
    if isinstance(message, Synced):
        requests = [_open_tuple(each) for each in message.requests]
        begun = (message.pool, message.epoch, message.session)
        return (rows.SYNCED, *begun, requests, message.tiers)
    if isinstance(message, Left):
        return (rows.LEFT, message.pool, message.epoch)
    assert_never(message)


def _event_tuple(event: OfOne, place: Place) -> tuple[object, ...]:
    if isinstance(event, Finished):
        found = event.usage
        usage: tuple[int, int, int] | None = None
        if found is not None:
            usage = (found.prompt_tokens, found.output_tokens, found.cached_tokens)
        end = (event.outcome, usage, event.tpot_s, event.fault, event.goes_on)
        return (rows.FINISHED, *place, event.request_id, *end)
    if isinstance(event, FirstToken):
        return (rows.FIRST_TOKEN, *place, event.request_id)
    if isinstance(event, Cancelled):
        return (rows.CANCELLED, *place, event.request_id)
    if isinstance(event, Bounced):
        return (rows.BOUNCED, *place, event.request_id)
    if isinstance(event, RecallDone):
        return (rows.RECALL_DONE, *place, event.request_id)
    if isinstance(event, RecallTooLate):
        return (rows.RECALL_TOO_LATE, *place, event.request_id)
    assert_never(event)


def _decision_tuple(decision: Ruling, place: Place) -> tuple[object, ...]:
    request_id = decision.request_id
    if isinstance(decision, Granted):
        return (rows.GRANTED, *place, request_id, decision.replica, decision.waited_s)
    if isinstance(decision, Placed):
        return (rows.PLACED, *place, request_id, decision.position, decision.wait_s)
    if isinstance(decision, Refused):
        return (rows.REFUSED, *place, request_id, decision.reason, decision.retry_after_s)
    if isinstance(decision, Recalled):
        return (rows.RECALLED, *place, request_id, decision.replica)
    if isinstance(decision, MoveWanted):
        return (rows.MOVE_WANTED, *place, request_id, decision.replica)
    if isinstance(decision, Astray):
        return (rows.ASTRAY, *place, request_id)
    assert_never(decision)


def _open_tuple(each: Open) -> tuple[object, ...]:
    request = _request_tuple(each.request)
    stay = (each.replica, each.running_s, each.is_started, each.output_tokens, each.was_let_in)
    return (request, each.waited_s, *stay)


def _request_tuple(it: Request) -> tuple[object, ...]:
    tag, blocks = _blocks_of(it.prefix) if it.prefix else (0, b"")
    usual = (
        it.id, it.model, it.tier, it.tenant, it.user, it.prompt_tokens, it.output_tokens_max,
        it.streams, it.body_bytes, it.route, tag, blocks, it.is_continuable,
    )  # fmt: skip
    if (
        it.sequences == 1 and it.patience_s is None and not it.excluded and it.only is None
        and it.session is None and it.read_timeout_s is None and it.ttft_target_s is None
        and not it.is_continuation and not it.caps
    ):  # fmt: skip
        return usual
    return (
        *usual, it.sequences, it.patience_s, it.excluded, it.only, it.session, it.read_timeout_s,
        it.ttft_target_s, it.is_continuation, it.caps,
    )  # fmt: skip


def _blocks_of(prefix: tuple[int, ...]) -> tuple[int, bytes]:
    """What all hashes share, and the rest of each; those from the first other one on are left."""
    tag = prefix[0] >> LOW_BITS
    if max(prefix) >> LOW_BITS != tag or min(prefix) >> LOW_BITS != tag:
        prefix = tuple(takewhile(lambda block: block >> LOW_BITS == tag, prefix))
    return tag, array("I", [block & LOW for block in prefix]).tobytes()


def _message_of(row: rows.MessageRow, sender: str) -> Message:
    # What every request has comes first, by its very type: `isinstance` asks the class of all rows'
    # classes, which takes as long as everything else here.
    if type(row) is rows.ArrivedRow:
        return _told(row, sender, Arrived(_request_of(row.request)), row.ago_s)
    if type(row) is rows.GrantedRow:
        return _decided(row, sender, Granted(row.request_id, row.replica, row.waited_s))
    if type(row) is rows.FirstTokenRow:
        return _told(row, sender, FirstToken(row.request_id))
    if type(row) is rows.FinishedRow:
        return _told(row, sender, _finished_of(row))
    if isinstance(row, rows.EventRow):
        return _told(row, sender, _event_of(row))
    if isinstance(row, rows.ProgressedRow):
        progress = Progressed(row.replica, row.output_tokens, None, row.held)
        return _told(row, sender, progress, row.ago_s)
    if isinstance(row, rows.RulingRow):
        return _decided(row, sender, _ruling_of(row))
    if isinstance(row, rows.BeatRow):
        return Beat(sender, row.pool, row.epoch, row.session, row.number)
    if isinstance(row, rows.LedRow):
        return Led(sender, row.pool, row.epoch, row.session, row.number)
    if isinstance(row, rows.LeftRow):
        return Left(sender, row.pool, row.epoch)
    requests = tuple([_open_of(each) for each in row.requests])
    return Synced(sender, row.pool, row.epoch, row.session, requests, row.tiers)


def _told(row: rows.Placing, sender: str, event: Happened, ago_s: float | None = None) -> Told:
    return Told(
        sender,
        row.pool,
        epoch=row.epoch,
        session=row.session,
        number=row.number,
        event=event,
        ago_s=ago_s,
    )


def _decided(row: rows.Placing, sender: str, decision: Ruling) -> Decided:
    return Decided(
        sender,
        row.pool,
        epoch=row.epoch,
        session=row.session,
        number=row.number,
        decision=decision,
    )


def _ruling_of(row: rows.RulingRow) -> Ruling:
    if isinstance(row, rows.PlacedRow):
        return Placed(row.request_id, row.position, row.wait_s)
    if isinstance(row, rows.RefusedRow):
        return Refused(row.request_id, row.reason, row.retry_after_s)
    if isinstance(row, rows.RecalledRow):
        return Recalled(row.request_id, row.replica)
    if isinstance(row, rows.MoveWantedRow):
        return MoveWanted(row.request_id, row.replica)
    return Astray(row.request_id)


def _finished_of(row: rows.FinishedRow) -> Finished:
    usage = None
    if row.usage is not None:
        prompt, output, cached = row.usage
        usage = Usage(prompt_tokens=prompt, output_tokens=output, cached_tokens=cached)
    return Finished(
        row.request_id, row.outcome, usage, row.tpot_s, fault=row.fault, goes_on=row.goes_on
    )


def _event_of(row: rows.EventRow) -> Happened:
    if isinstance(row, rows.CancelledRow):
        return Cancelled(row.request_id)
    if isinstance(row, rows.BouncedRow):
        return Bounced(row.request_id)
    if isinstance(row, rows.RecallDoneRow):
        return RecallDone(row.request_id)
    return RecallTooLate(row.request_id)


def _open_of(row: rows.OpenRow) -> Open:
    return Open(
        _request_of(row.request),
        row.waited_s,
        row.replica,
        row.running_s,
        row.is_started,
        row.output_tokens,
        row.was_let_in,
    )


def _request_of(row: rows.RequestRow) -> Request:
    prefix: tuple[int, ...] = ()
    if row.blocks:
        lows, high = array("I"), row.tag << LOW_BITS
        lows.frombytes(row.blocks)
        prefix = tuple([high | low for low in lows])
    return Request(
        id=row.id,
        model=row.model,
        tier=row.tier,
        tenant=row.tenant,
        user=row.user,
        arrived_at=0.0,
        prompt_tokens=row.prompt_tokens,
        output_tokens_max=row.output_tokens_max,
        sequences=row.sequences,
        streams=row.streams,
        body_bytes=row.body_bytes,
        patience_s=row.patience_s,
        route=row.route,
        excluded=frozenset(row.excluded),
        only=row.only,
        prefix=prefix,
        session=row.session,
        read_timeout_s=row.read_timeout_s,
        ttft_target_s=row.ttft_target_s,
        is_continuation=row.is_continuation,
        is_continuable=row.is_continuable,
        caps=row.caps,
    )
