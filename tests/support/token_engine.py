"""An engine that tells the ids of its tokens; a test says where its answers break off, and how.

The rest of an answer is a function of the ids before it, as at temperature 0.
"""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.support.raw_engine import SSE_HEAD, chunked, length_of

MODEL = "raw"
CONTEXT_TOKENS = 512
FINGERPRINT = "vllm-tokens"
PIECES = (
    *(b" a", b"the", b"\n", b'"', b"\\", b" x,", b'","', b"data: [DONE]", b'"token_ids":[1]'),
    *("\u00e9".encode(), "\u5317".encode(), *(bytes([byte]) for byte in "\u4f60".encode())),
    *(bytes([byte]) for byte in "\U0001f642".encode()),
    *(b"\xff", b"\x80", b"", b""),
)
"""The vocabulary: whole texts, single bytes of characters, rubbish, and ids without any text."""
How = Literal["close", "error", "refusal", "end", "hang"]
ERROR = (
    b'data: {"error": {"message": "EngineCore died", "type": "x", "param": null, "code": %d}}\n\n'
)
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Break:
    """Where an answer breaks off: after so many bytes of its body, and in which way."""

    at: int
    how: How = "close"


def next_id(ids: Sequence[int]) -> int:
    """What follows `ids`."""
    return zlib.crc32(json.dumps(list(ids)).encode()) % len(PIECES)


class Detokenizer:
    """Text by text, as engines have it: what may be half a character waits for the next ids."""

    def __init__(self) -> None:
        self._bytes = b""

    def push(self, token_id: int) -> str:
        self._bytes += PIECES[token_id]
        text = self._bytes.decode("utf-8", "replace")
        if not text or text.endswith("\ufffd"):
            return ""
        self._bytes = b""
        return text


@dataclass
class TokenEngine:
    """One replica."""

    breaks: list[Break] = field(default_factory=list)
    """Of the answers to come, in order; those after them are whole."""
    group: int = 1
    """Tokens an event."""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Paths and bodies so far."""
    detokenizes: bool = True
    port: int = 0
    open: int = 0
    """Answers under way."""

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
                body = await reader.readexactly(length_of(head))
                if method == "GET":
                    writer.write(self._get(target))
                elif not await self._post(writer, target, json.loads(body)):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    def _get(self, target: str) -> bytes:
        card = {"id": MODEL, "owned_by": "vllm", "max_model_len": CONTEXT_TOKENS}
        if target == "/v1/models":
            return plain({"object": "list", "data": [card]})
        return plain({}, b"404 Not Found")

    async def _post(self, writer: asyncio.StreamWriter, target: str, body: dict[str, Any]) -> bool:
        """Answer; whether the connection may be used again."""
        self.asked.append((target, body))
        if target == "/detokenize":
            text = b"".join(PIECES[each] for each in body["tokens"]).decode("utf-8", "replace")
            status = b"200 OK" if self.detokenizes else b"404 Not Found"
            writer.write(plain({"prompt": text}, status))
            return True
        events = answer(target, body, self.group)
        if not body.get("stream"):
            writer.write(plain({"choices": []}))
            return True
        cut = self.breaks.pop(0) if self.breaks else None
        self.open += 1
        try:
            writer.write(SSE_HEAD)
            sent = 0
            for event in events:
                data = event if cut is None else event[: max(0, cut.at - sent)]
                if data:
                    writer.write(chunked(data))
                    await writer.drain()
                    await asyncio.sleep(0)
                sent += len(event)
                if cut is not None and sent >= cut.at:
                    return await self._break(writer, cut)
            writer.write(b"0\r\n\r\n")
            return True
        finally:
            self.open -= 1

    async def _break(self, writer: asyncio.StreamWriter, cut: Break) -> bool:
        match cut.how:
            case "error" | "refusal":
                event = ERROR % (500 if cut.how == "error" else 400)
                writer.write(chunked(event) + chunked(DONE) + b"0\r\n\r\n")
                return True
            case "end":
                writer.write(b"0\r\n\r\n")
                return True
            case "hang":
                await asyncio.sleep(3600)
        return False


@asynccontextmanager
async def running_token_engine(**fields: Any) -> AsyncIterator[TokenEngine]:
    """A token engine on a port of its own."""
    engine = TokenEngine(**fields)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    engine.port = server.sockets[0].getsockname()[1]
    try:
        yield engine
    finally:
        server.close()


def prompt_of(body: dict[str, Any]) -> list[int]:
    """The ids of a body's prompt."""
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return prompt
    text = json.dumps(body.get("messages", prompt))
    return [1, *(each % len(PIECES) for each in text.encode()), 2]


def output_of(prompt: Sequence[int], count: int) -> list[int]:
    """What is generated after `prompt`."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(next_id(ids))
    return ids[len(prompt) :]


def answer(target: str, body: dict[str, Any], group: int) -> list[bytes]:
    """The events of a whole stream."""
    is_chat = target.endswith("chat/completions")
    prompt = prompt_of(body)
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is None:
        limit = CONTEXT_TOKENS - len(prompt) if is_chat else 16
    assert 0 < limit <= CONTEXT_TOKENS - len(prompt), "an engine would refuse that"
    output, tells = output_of(prompt, limit), bool(body.get("return_token_ids"))
    options = body.get("stream_options") or {}
    frame = {
        "id": "chatcmpl-1" if is_chat else f"cmpl-{len(prompt)}",
        "object": "chat.completion.chunk" if is_chat else "text_completion",
        "created": 1_700_000_000 + len(prompt),
        "model": body["model"],
    }
    events, detokenizer = [], Detokenizer()
    prompt_ids = prompt if tells else None
    if is_chat:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        told = _usage(len(prompt), 0) if options.get("continuous_usage_stats") else {}
        events.append(
            {**frame, "choices": [choice], **told, "prompt_token_ids": prompt_ids,
             "prompt_text": None}
        )  # fmt: skip
    for at in range(0, len(output), group):
        ids = output[at : at + group]
        text = "".join(detokenizer.push(each) for each in ids)
        is_last = at + group >= len(output)
        reason = {"finish_reason": "length" if is_last else None}
        shown = ids if tells else None
        if is_chat:
            why = {"stop_reason": None} if is_last else {}
            delta = {"content": text}
            choice = {"index": 0, "delta": delta, "logprobs": None, **reason, **why}
        else:
            due = prompt_ids if at == 0 else None
            choice = {"index": 0, "text": text, "logprobs": None, **reason, "stop_reason": None,
                      "prompt_token_ids": due}  # fmt: skip
        event = {**frame, "choices": [{**choice, "token_ids": shown}]}
        if options.get("continuous_usage_stats"):
            event |= _usage(len(prompt), at + len(ids))
        elif is_last and not options.get("include_usage"):
            event["system_fingerprint"] = FINGERPRINT
        events.append(event)
    if options.get("include_usage"):
        usage = _usage(len(prompt), len(output))
        events.append({**frame, "choices": [], **usage, "system_fingerprint": FINGERPRINT})
    return [*map(_event, events), DONE]


def plain(content: Any, status: bytes = b"200 OK") -> bytes:
    """A JSON answer."""
    body = json.dumps(content).encode()
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def _usage(prompt: int, output: int) -> dict[str, Any]:
    counts = {
        "prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output,
    }  # fmt: skip
    return {"usage": counts}


def _event(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()
