"""Forms with files: read in passing, stored while they come, sent on as they were."""

import asyncio
import contextlib
import errno
import os
import random
import tempfile
import threading
from io import FileIO
from typing import Any

import pytest

from gateway.api.call import Call
from gateway.api.disconnect import ClientLeftError
from gateway.api.form import FIELD_BYTES_MAX, PARTS_MAX, read_form
from gateway.api.routes import TRANSCRIPTIONS
from gateway.api.threads import EXHAUSTED_RETRY_S
from gateway.api.upload import FORM_MEMORY_BYTES, STORAGE_RETRY_S, RenamedUpload, Spool, Upload
from gateway.errors import (
    BadRequestError,
    BodyTooLargeError,
    GatewayError,
    OverloadedError,
    StorageFullError,
)
from gateway.upstream.pieces import PIECE_BYTES_MAX
from tests.support.sending import BOUNDARY, FORM_TYPE, Sending, cut, form, part

SOUND = random.Random(7).randbytes(3 * FORM_MEMORY_BYTES)
BYTES_MAX = 32 << 20


async def call_in(
    *pieces: bytes, content_type: bytes | None = FORM_TYPE, bytes_max: int = BYTES_MAX, **more: Any
) -> Call:
    """The call in a form that comes in these pieces."""
    sending = Sending(*pieces, **more)
    return await read_form(TRANSCRIPTIONS, sending, content_type=content_type, bytes_max=bytes_max)


async def all_of(body: Upload | RenamedUpload | None) -> bytes:
    """What would be sent."""
    assert body is not None
    pieces = [piece async for piece in body.pieces()]
    assert all(0 < len(piece) <= PIECE_BYTES_MAX for piece in pieces)
    data = b"".join(pieces)
    assert len(data) == body.length
    return data


@pytest.mark.parametrize("size", [1, 2, 17, 1_000, 1 << 20])
async def test_a_form_is_read_and_sent_on_byte_for_byte_however_it_is_cut(size: int) -> None:
    """A chunked upload that lost a byte at a seam is a broken sound file."""
    sound = b"\0\xff\r\n--" + BOUNDARY[:9] + b"\r\n\r\n\x00" * 3 + SOUND[:100]
    body = form(
        part("file", sound, filename="a \xe9.wav", more=b"Content-Type: audio/wav\r\n"),
        part("model", b"whisper"),
        part("stream", b"True"),
        part("user", "bj\u00f6rn".encode()),
        part("service_tier", b"flex"),
        part("max_completion_tokens", b"7"),
        part("timestamp_granularities[]", b"word"),
        part("timestamp_granularities[]", b"segment"),
    )
    call = await call_in(*cut(body, size))
    assert (call.model, call.streams, call.user) == ("whisper", True, "bj\u00f6rn")
    assert (call.service_tier, call.output_tokens_max, call.sequences) == ("flex", 7, 1)
    assert (call.body, call.size, call.prompt_tokens) == (b"", len(body), None)
    assert call.upload is not None
    assert call.upload.content_type == FORM_TYPE
    assert call.upload.file_bytes == len(sound)
    assert await all_of(call.upload) == body
    assert await all_of(call.upload) == body, "a retry sends it again"
    new = body.replace(b"whisper\r\n", b"openai/whisper-large-v3\r\n")
    assert await all_of(call.upload.renamed("openai/whisper-large-v3")) == new
    call.upload.close()


@pytest.mark.parametrize("size", [60_000, FORM_MEMORY_BYTES, 2 * FORM_MEMORY_BYTES])
async def test_a_long_sound_waits_in_a_file(size: int) -> None:
    """A hundred waiting uploads in memory would be gigabytes."""
    body = form(part("file", SOUND, filename="a.wav"), part("model", b"w"), part("x", b"y"))
    call = await call_in(*cut(body, size))
    upload = call.upload
    assert upload is not None
    assert len(upload._spool._memory) <= FORM_MEMORY_BYTES
    both = await asyncio.gather(all_of(upload), all_of(upload.renamed("longer")))
    assert tuple(both) == (body, body.replace(b"\r\n\r\nw\r\n", b"\r\n\r\nlonger\r\n"))
    upload.close()
    upload.close()
    assert upload.is_closed
    assert upload._spool._file is not None
    assert upload._spool._file.closed


async def test_a_full_disk_is_told_as_one_and_nothing_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would look like a fault of the gateway's own, or half an upload would be sent on."""
    full = FileIO("/dev/full", "r+")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full)
    body = form(part("file", SOUND, filename="a.wav"))
    with pytest.raises(StorageFullError) as raised:
        await call_in(*cut(body, 60_000))
    assert raised.value.retry_after_s == STORAGE_RETRY_S
    assert full.closed


FEW = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@pytest.mark.parametrize("number", [*FEW, errno.EDQUOT, errno.EROFS, errno.EIO])
async def test_whatever_keeps_an_upload_from_being_stored_is_told_with_a_time(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A bare 500 would say that nobody knows what happened, nor when it is over."""

    def refuses(**_: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuses)
    body = form(part("file", SOUND, filename="a.wav"))
    with pytest.raises(GatewayError) as raised:
        await call_in(*cut(body, 60_000))
    error = raised.value
    wanted = (503, "over_capacity") if number in FEW else (507, "storage_full")
    assert (error.status, error.code) == wanted
    assert error.retry_after_s


async def test_an_upload_that_cannot_be_read_again_is_told_so() -> None:
    """Disks fail between the two, and no engine is to blame."""
    call = await call_in(*cut(form(part("file", SOUND, filename="a.wav")), 60_000))
    assert call.upload is not None
    file = call.upload._spool._file
    assert file is not None
    os.close(file.fileno())
    with pytest.raises(StorageFullError) as raised:
        await anext(call.upload.pieces())
    assert raised.value.retry_after_s == STORAGE_RETRY_S
    with contextlib.suppress(OSError):
        call.upload.close()


async def test_an_upload_waits_for_no_thread_that_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bound on a container's processes counts threads."""

    def refuses(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", refuses)
    with pytest.raises(OverloadedError) as raised:
        await call_in(*cut(form(part("file", SOUND, filename="a.wav")), 60_000))
    assert raised.value.retry_after_s == EXHAUSTED_RETRY_S


async def test_an_upload_that_is_closed_while_it_is_sent_ends_with_an_error() -> None:
    """Its file's number may belong to somebody else's by then."""
    call = await call_in(form(part("file", SOUND, filename="a.wav")), b"")
    assert call.upload is not None
    pieces = call.upload.pieces()
    await anext(pieces)
    reading = asyncio.gather(anext(pieces), return_exceptions=True)
    await asyncio.sleep(0)
    call.upload.close()
    result = (await reading)[0]
    assert isinstance(result, bytes | ValueError)


async def test_the_disk_is_touched_in_threads_only() -> None:
    """A slow disk would stop every stream."""
    seen: set[int] = set()

    class Watched(Spool):
        __slots__ = ()

        def _store(self) -> None:
            seen.add(threading.get_ident())
            super()._store()

        def _stored(self, start: int, end: int) -> bytes:
            seen.add(threading.get_ident())
            return super()._stored(start, end)

    spool = Watched()
    await spool.add(SOUND)
    await spool.add(b"end")
    assert await spool.read(0, 10) == SOUND[:10]
    assert await spool.read(len(SOUND), len(SOUND) + 9) == b"end"
    assert await spool.read(len(SOUND) - 1, len(SOUND) + 9) == SOUND[-1:], "the rest comes next"
    assert seen
    assert threading.get_ident() not in seen
    spool.close()


@pytest.mark.parametrize("value", [b"", b"x"])
async def test_an_empty_file_and_no_model_are_for_the_engine_to_judge(value: bytes) -> None:
    """Which model is meant where there is only one, it knows."""
    body = form(part("file", value, filename=""), part("model", b""))
    call = await call_in(body)
    assert call.model is None
    assert (call.streams, call.output_tokens_max, call.user) == (False, None, None)
    assert await all_of(call.upload) == body
    assert (await call_in(form())).model is None


@pytest.mark.parametrize(
    "content_type",
    [
        None, b"", b"application/json", b"multipart/form-data", b"multipart/form-data; boundary=",
        b"multipart/mixed; boundary=a", b"multipart/form-data; boundary=" + b"x" * 5_000,
    ],
)  # fmt: skip
async def test_what_names_no_form_and_boundary_is_refused(content_type: bytes | None) -> None:
    """Nothing in it could be found."""
    with pytest.raises(BadRequestError, match="form"):
        await call_in(form(), content_type=content_type)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (form(part("model", b"a"), part("model", b"b")), "model"),
        (form(part("model", b"a"), part("model", b"b", filename="f")), "model"),
        (form(part("model", b"a", filename="f")), "model"),
        (form(part("stream", b"true"), part("stream", b"false")), "stream"),
        (form(part("stream", b"perhaps")), "stream"),
        (form(part("max_tokens", b"many")), "max_tokens"),
        (form(part("model", b"\xff\0")), "model"),
        (form(part("user", b"\xc3")), "user"),
        (form(part("priority", b"1")), "priority"),
        (form(part("request_id", b"1")), "request_id"),
        (form(part("prompt", b"x" * (FIELD_BYTES_MAX + 1))), "prompt"),
        (form(*[part("x", b"")] * (PARTS_MAX + 1)), None),
        (form(part("model", b"m").replace(b"; name=", b"; named=")), None),
        (part("model", b"m"), None),
        (b"junk", None),
        (b"", None),
        (form(part("a", b"b", more=b"x" * 9_000 + b": y\r\n")), None),
        (form(part("a", b"b", more=b"\xff: y\r\n")), None),
    ],
)
@pytest.mark.parametrize("size", [11, 100_000])
async def test_a_form_that_cannot_be_understood_is_refused_by_name(
    body: bytes, param: str | None, size: int
) -> None:
    """Where the gateway and the engine could read it differently, one is told another's model."""
    with pytest.raises(BadRequestError) as refused:
        await call_in(*cut(body, size) or [b""])
    assert refused.value.param == param


async def test_binary_in_a_field_that_nobody_reads_is_passed_on() -> None:
    """The engine's own fields are the engine's."""
    body = form(part("prompt", b"\0\xff\xfe"), part("file", b"\0" * 10, filename="x"))
    assert await all_of((await call_in(body)).upload) == body


@pytest.mark.parametrize("size", [100, 1_000_000])
async def test_a_form_beyond_the_bound_is_refused_before_more_is_read(size: int) -> None:
    """The message names the bound."""
    sending = Sending(*cut(form(part("file", SOUND, filename="x")), size))
    with pytest.raises(BodyTooLargeError, match=r"bounds\.body"):
        await read_form(TRANSCRIPTIONS, sending, content_type=FORM_TYPE, bytes_max=2_000)
    assert sending.asked <= 2_000 // size + 1
    with pytest.raises(BodyTooLargeError):
        await read_form(TRANSCRIPTIONS, sending, content_type=FORM_TYPE, bytes_max=10, length=b"11")


@pytest.mark.parametrize("count", [0, 1, 30, 31])
async def test_a_client_that_leaves_while_it_uploads_leaves_nothing_behind(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file for each of them would fill the disk."""
    spools: list[Spool] = []
    close = Spool.close

    def watched(spool: Spool) -> None:
        spools.append(spool)
        close(spool)

    monkeypatch.setattr(Spool, "close", watched)
    pieces = cut(form(part("file", SOUND, filename="x")), 100_000)[:count]
    with pytest.raises(ClientLeftError):
        await call_in(*pieces, leaves=True)
    assert [spool.is_closed for spool in spools] == [True]


async def test_a_form_cancelled_while_it_is_stored_is_closed() -> None:
    """The gateway may stop at any moment."""
    body = form(part("file", SOUND, filename="x"))
    task = asyncio.get_running_loop().create_task(call_in(body, b"", b""))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
