"""The bytes a fake vLLM answers with, encoded once; only stamps and counts are filled in later.

It knows the shapes of vLLM's answers (0.32) and nothing of sockets or time.
"""

from dataclasses import dataclass

MODEL = "mock-model"
PROMPT_TOKENS = 21
JSON_BYTES = 600
EVENT_BYTES = 220
EVENT_BYTES_WITH_IDS = 260
STAMP_DIGITS = 16
"""A stamp is "@T" + this many digits of monotonic ns + "@": room for 115 days of uptime."""
LAST_CHUNK = b"0\r\n\r\n"

_IDS = ',"token_ids":[123456]'
_PROMPT_IDS = f',"prompt_token_ids":{list(range(PROMPT_TOKENS))}'
_CREATED = 1_764_450_000
_COMMON = "HTTP/1.1 200 OK\r\ndate: Sat, 29 Nov 2025 21:00:00 GMT\r\nserver: uvicorn\r\n"


def stamp_of(now_ns: int) -> bytes:
    """The mark by which a client on this machine learns when an event left."""
    return b"@T%0*d@" % (STAMP_DIGITS, now_ns)


def plain(body: str, *, media: str = "application/json", status: str = "200 OK") -> bytes:
    """A whole response with a length."""
    head = _COMMON.replace("200 OK", status)
    encoded = body.encode()
    length = f"content-length: {len(encoded)}\r\ncontent-type: {media}\r\n\r\n"
    return (head + length).encode() + encoded


def chunk(event: bytes) -> bytes:
    """`event` as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(event), event)


STREAM_HEAD = (
    _COMMON + "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
).encode()
DONE = chunk(b"data: [DONE]\n\n")
HEALTHY = plain("")
NOT_FOUND = plain('{"detail":"Not Found"}', status="404 Not Found")
BAD_REQUEST = plain(
    '{"error":{"message":"The body is not a JSON object.","type":"Bad Request","param":null,'
    '"code":400}}',
    status="400 Bad Request",
)
VERSION = plain('{"version":"0.32.0"}')
MODELS = plain(
    f'{{"object":"list","data":[{{"id":"{MODEL}","object":"model","created":{_CREATED},'
    f'"owned_by":"vllm","root":"{MODEL}","parent":null,"max_model_len":131072,"permission":[]}}]}}'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The answers of one route: /v1/chat/completions or /v1/completions."""

    json: bytes
    opening: bytes
    """Response head, and for chat the role event."""
    before_stamp: bytes
    after_stamp: bytes
    finish: bytes
    usage_head: str
    telling_ids: "Shape | None" = None
    """What is sent instead where token ids are asked for."""

    def content(self, now_ns: int) -> bytes:
        """One content event of `EVENT_BYTES`, as one HTTP chunk."""
        return b"%b%b%b" % (self.before_stamp, stamp_of(now_ns), self.after_stamp)

    def usage(self, completion_tokens: int) -> bytes:
        """The chunk that a request with `stream_options.include_usage` gets before the end."""
        body = f'{self.usage_head}"choices":[],"usage":{_usage(completion_tokens)}}}\n\n'
        return chunk(body.encode())


def chat_shape() -> Shape:
    """Answers of /v1/chat/completions."""
    head = _head("chatcmpl", "chat.completion.chunk")
    role = _choice(head, '"delta":{"role":"assistant","content":""}', "null")
    whole = _whole_json(
        '{"id":"chatcmpl-5d0c6c9a1f6b4e3c","object":"chat.completion",',
        '"message":{"role":"assistant","content":"%s","refusal":null,"annotations":null,'
        '"audio":null,"function_call":null,"reasoning":null}',
    )
    told = _choice(head, '"delta":{"role":"assistant","content":""}', "null", after=_PROMPT_IDS)
    piece = '"delta":{"content":"%s"}'
    opening = STREAM_HEAD + chunk(told.encode())
    telling = _shape(head, opening=opening, whole=whole, piece=piece, ids=_IDS)
    opening = STREAM_HEAD + chunk(role.encode())
    return _shape(head, opening=opening, whole=whole, piece=piece, telling_ids=telling)


def completion_shape() -> Shape:
    """Answers of /v1/completions."""
    head = _head("cmpl", "text_completion")
    whole = _whole_json('{"id":"cmpl-5d0c6c9a1f6b4e3c","object":"text_completion",', '"text":"%s"')
    return _shape(head, opening=STREAM_HEAD, whole=whole, piece='"text":"%s"')


def metrics(*, running: int, tokens: int, itl: tuple[int, float], ttft: tuple[int, float]) -> bytes:
    """The lines of vLLM's /metrics that a router reads; `itl` and `ttft` are (count, sum in s)."""
    lines = [
        *_metric("num_requests_running", "gauge", f" {running}.0"),
        *_metric("num_requests_waiting", "gauge", " 0.0"),
        *_metric("kv_cache_usage_perc", "gauge", f" {running / 100_000:.6f}"),
        *_metric("generation_tokens", "counter", f" {tokens}.0", series="generation_tokens_total"),
        "# TYPE vllm:cache_config_info gauge",
        'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",'
        'kv_cache_size_tokens="16000000",num_gpu_blocks="1000000"} 1.0',
        *_histogram("inter_token_latency_seconds", itl),
        *_histogram("time_to_first_token_seconds", ttft),
        "",
    ]
    return plain("\n".join(lines), media="text/plain; version=1.0.0; charset=utf-8")


def _shape(
    head: str,
    *,
    opening: bytes,
    whole: bytes,
    piece: str,
    ids: str = "",
    telling_ids: Shape | None = None,
) -> Shape:
    start, _, end = _choice(head, piece, "null", ids=ids).partition("%s")
    size = EVENT_BYTES_WITH_IDS if ids else EVENT_BYTES
    pad = "x" * (size - len(start) - len(end) - len(stamp_of(0)))
    return Shape(
        json=whole,
        opening=opening,
        before_stamp=f"{size:x}\r\n{start}".encode(),
        after_stamp=f"{pad}{end}\r\n".encode(),
        finish=chunk(_choice(head, piece % "", '"length","stop_reason":null', ids=ids).encode()),
        usage_head=head,
        telling_ids=telling_ids,
    )


def _head(prefix: str, kind: str) -> str:
    return (
        f'data: {{"id":"{prefix}-5d0c6c9a1f6b","object":"{kind}",'
        f'"created":{_CREATED},"model":"{MODEL}",'
    )


def _choice(head: str, piece: str, finish: str, *, ids: str = "", after: str = "") -> str:
    return f'{head}"choices":[{{"index":0,{piece},"finish_reason":{finish}{ids}}}]{after}}}\n\n'


def _usage(completion_tokens: int) -> str:
    total = PROMPT_TOKENS + completion_tokens
    return (
        f'{{"prompt_tokens":{PROMPT_TOKENS},"total_tokens":{total},'
        f'"completion_tokens":{completion_tokens}}}'
    )


def _whole_json(head: str, message: str) -> bytes:
    frame = (
        f'{head}"created":{_CREATED},"model":"{MODEL}","choices":[{{"index":0,{message},'
        f'"logprobs":null,"finish_reason":"stop","stop_reason":null}}],"service_tier":null,'
        f'"system_fingerprint":null,"usage":{_usage(17)},"prompt_logprobs":null,'
        f'"kv_transfer_params":null}}'
    )
    return plain(frame % ("x" * (JSON_BYTES - len(frame) + len("%s"))))


def _metric(name: str, kind: str, value: str, series: str = "") -> list[str]:
    labels = f'{{engine="0",model_name="{MODEL}"}}'
    return [f"# TYPE vllm:{name} {kind}", f"vllm:{series or name}{labels}{value}"]


def _histogram(name: str, of: tuple[int, float]) -> list[str]:
    labels = f'engine="0",model_name="{MODEL}"'
    return [
        f"# TYPE vllm:{name} histogram",
        f'vllm:{name}_bucket{{engine="0",le="+Inf",model_name="{MODEL}"}} {of[0]}.0',
        f"vllm:{name}_count{{{labels}}} {of[0]}.0",
        f"vllm:{name}_sum{{{labels}}} {of[1]:.6f}",
    ]
