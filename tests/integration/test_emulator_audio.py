"""Uploads of speech to the emulated engine, which says what it received."""

import json
from hashlib import sha256
from typing import Any

import httpx
import pytest

from gateway.emulator.audio_request import FILE_BYTES_PER_S, transcript
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.integration.test_emulator_wire import client_of, events_of

PATH = "/v1/audio/transcriptions"
TRANSLATIONS = "/v1/audio/translations"
SPEECH = bytes(range(256)) * 500


async def heard(client: httpx.AsyncClient, path: str = PATH, **fields: Any) -> httpx.Response:
    """The answer to an upload."""
    files = {"file": ("speech.wav", SPEECH, "audio/wav")}
    return await client.post(path, files=files, data={"model": "tiny", **fields})


async def test_the_text_tells_whether_the_upload_arrived_unharmed() -> None:
    """A relay that loses a byte of a form would go unnoticed."""
    async with client_of() as client:
        for path, task in ((PATH, "transcription"), (TRANSLATIONS, "translation")):
            answer = (await heard(client, path)).json()
            assert answer["text"] == transcript(task, SPEECH)  # type: ignore[arg-type]  # of a loop
        assert sha256(SPEECH).hexdigest() in answer["text"]


async def test_uploads_are_remembered_by_size_and_checksum() -> None:
    """Tests could not ask what arrived, and whole files would fill the memory."""
    big = bytes(3 << 20)
    async with (
        running_emulator(EmulatorOptions(profile="instant")) as emulator,
        httpx.AsyncClient(base_url=emulator.url) as client,
    ):
        await client.post(PATH, files={"file": ("a.mp3", big, "audio/mpeg")})
        (upload,) = emulator.uploads
        received = emulator.received[-1]
    assert (upload.filename, upload.content_type) == ("a.mp3", "audio/mpeg")
    assert (upload.size_bytes, upload.sha256) == (len(big), sha256(big).hexdigest())
    assert received.body_bytes > len(big) > len(received.body)


@pytest.mark.parametrize("path", [PATH, TRANSLATIONS])
async def test_a_stream_is_chunks_with_usage_only_where_asked_for(path: str) -> None:
    """The flat option of a form is easily lost where the nested one of JSON is meant."""
    async with client_of() as client:
        plain = events_of((await heard(client, path, stream="true")).content)
        told = events_of(
            (await heard(client, path, stream="true", stream_include_usage="true")).content
        )
        running = events_of(
            (
                await heard(
                    client,
                    path,
                    stream="true",
                    stream_include_usage="true",
                    stream_continuous_usage_stats="true",
                )
            ).content
        )
    task = "transcription" if path == PATH else "translation"
    assert plain[-1] == told[-1] == running[-1] == "[DONE]"
    assert {chunk["object"] for chunk in plain[:-1]} == {f"{task}.chunk"}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in plain[:-1]) == transcript(
        "transcription" if path == PATH else "translation", SPEECH
    )
    assert plain[-2]["choices"][0]["finish_reason"] == "stop"
    assert not any("usage" in chunk for chunk in plain[:-1])
    assert [chunk for chunk in told[:-1] if "usage" in chunk] == [told[-2]]
    assert told[-2]["choices"] == []
    assert all("usage" in chunk for chunk in running[:-1])
    usage = told[-2]["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_formats_are_as_the_engine_gives_them() -> None:
    """`text` is no plain text there, and subtitles are refused."""
    async with client_of() as client:
        plain = (await heard(client, response_format="text")).json()
        verbose = (await heard(client, response_format="verbose_json", language="de")).json()
        translated = (await heard(client, TRANSLATIONS)).json()
        subtitles = await heard(client, response_format="srt")
        both = await heard(client, response_format="verbose_json", stream="true")
    assert plain["usage"] == {"type": "duration", "seconds": 4}
    assert translated.keys() == {"text"}
    assert verbose["duration"] == len(SPEECH) / FILE_BYTES_PER_S
    assert verbose["language"] == "de"
    assert verbose["segments"][0]["text"] == verbose["text"]
    assert subtitles.status_code == both.status_code == 400


async def test_a_limit_cuts_the_text() -> None:
    """Predictions of a transcription's length would have no bound to test."""
    async with client_of() as client:
        text = (await heard(client, max_completion_tokens="3")).json()["text"]
    assert len(text) < 20


async def test_what_is_no_upload_is_refused() -> None:
    """A gateway that rebuilds forms would send just these."""
    async with client_of() as client:
        none = await client.post(PATH, data={"model": "tiny"}, files={"other": ("a", b"x")})
        word = await client.post(PATH, files={"file": (None, "x"), "other": ("a", b"x")})
        json_body = await client.post(PATH, json={"file": "x"})
        broken = await client.post(
            PATH, content=b"--x\r\nnonsense", headers={"content-type": "multipart/form-data"}
        )
        unknown = await client.post(PATH, data={"model": "nope"}, files={"file": ("a", b"x")})
        alone = await heard(client, stream_include_usage="true")
    assert (none.status_code, none.json()["error"]["param"]) == (400, "body.file")
    assert word.status_code == 422
    assert (json_body.status_code, broken.status_code, unknown.status_code) == (400, 400, 404)
    assert alone.json()["error"]["param"] == "stream_include_usage"
    assert json.loads(broken.content)["error"]["type"] == "Bad Request"


async def test_an_empty_file_is_a_file() -> None:
    """Silence is heard too."""
    async with client_of() as client:
        answer = await client.post(PATH, files={"file": ("a.wav", b"")})
    assert answer.json()["text"] == transcript("transcription", b"")
