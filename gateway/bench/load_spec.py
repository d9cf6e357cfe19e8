"""What a load run is asked to do and what it reports, both able to cross a process boundary."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields

import orjson

from gateway.bench.process import Usage
from gateway.bench.quantiles import Quantiles
from gateway.bench.replies import MODEL

QUESTION = "Say in a few words why a queue should be fair. "


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """One run: `connections` clients, each sending its next request when the last one is over."""

    port: int
    connections: int = field(default=1, metadata={"help": "clients, or concurrent streams"})
    stream: bool = field(default=False, metadata={"help": "ask for server-sent events"})
    events: int = field(default=64, metadata={"help": "max_tokens of a request"})
    events_per_s: float = field(
        default=0.0,
        metadata={"help": "of all streams together, set at the upstream; 0 leaves its pace alone"},
    )
    events_per_write: int = field(
        default=1, metadata={"help": "that a stream gets at once, set with the pace"}
    )
    requests_per_s: float = field(
        default=0.0,
        metadata={"help": "open loop: of all clients together; 0: each asks again at once"},
    )
    upstream_port: int = field(default=0, metadata={"help": "the fake engine; 0: same as --port"})
    alone_s: float = field(default=0.0, metadata={"help": "before any client but the first"})
    ramp_s: float = field(default=0.0, metadata={"help": "over which the others start"})
    warm_s: float = field(default=0.5, metadata={"help": "after the ramp, before the window"})
    window_s: float = field(default=2.0, metadata={"help": "the measured window"})
    path: str = "/v1/chat/completions"
    model: str = MODEL
    key: str = field(default="", metadata={"help": "bearer key; empty for none"})
    body_bytes: int = field(default=0, metadata={"help": "added to the user's message"})
    watch: str = field(default="", metadata={"help": "pids of process trees, by commas"})

    def __post_init__(self) -> None:
        if min(self.connections, self.events, self.events_per_write) < 1:
            raise ValueError("connections and events must be at least 1")
        durations_s = (self.alone_s, self.ramp_s, self.warm_s, self.window_s)
        if min(*durations_s, self.events_per_s, self.requests_per_s) < 0:
            raise ValueError("durations and rates cannot be negative")

    @property
    def watched_pids(self) -> list[int]:
        """The roots of the process trees whose usage is reported."""
        return [int(pid) for pid in self.watch.split(",") if pid]

    @property
    def interval_us(self) -> int:
        """Between two writes of one stream, for `events_per_s` in all; 0: none was asked for."""
        writes_per_s = self.events_per_s / self.events_per_write
        return round(self.connections / writes_per_s * 1e6) if writes_per_s else 0

    @property
    def length_s(self) -> float:
        """From the first client to the end of the window."""
        return self.alone_s + self.ramp_s + self.warm_s + self.window_s

    def request_bytes(self) -> bytes:
        """The request that every client sends."""
        body = orjson.dumps(self._body())
        key = f"authorization: Bearer {self.key}\r\n" if self.key else ""
        head = (
            f"POST {self.path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\naccept: */*\r\n"
            f"user-agent: fairgate-bench\r\n{key}content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def to_arguments(self) -> list[str]:
        """The command line that `from_arguments` turns into an equal spec."""
        arguments = []
        for name, value in asdict(self).items():
            option = f"--{name.replace('_', '-')}"
            if value is True:
                arguments.append(option)
            elif value is not False and value != "":
                arguments += [option, str(value)]
        return arguments

    @classmethod
    def from_arguments(cls, arguments: Sequence[str]) -> "LoadSpec":
        """Parse a command line; exits with a usage line when it is wrong."""
        parser = argparse.ArgumentParser(
            description="a load generator: a closed loop, or an open one"
        )
        for entry in fields(cls):
            option = f"--{entry.name.replace('_', '-')}"
            about = entry.metadata.get("help")
            if entry.default is MISSING:
                parser.add_argument(option, type=int, required=True, help=about)
            elif entry.default is False:
                parser.add_argument(option, action="store_true", help=about)
            else:
                kind = type(entry.default)
                parser.add_argument(option, type=kind, default=entry.default, help=about)
        return cls(**vars(parser.parse_args(arguments)))

    def _body(self) -> dict[str, object]:
        text = QUESTION + "x" * self.body_bytes
        prompt: dict[str, object] = (
            {"prompt": text}
            if self.path.endswith("/v1/completions")
            else {"messages": [{"role": "user", "content": text}]}
        )
        body = {"model": self.model, **prompt, "temperature": 0.7, "max_tokens": self.events}
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What happened in the window. Latencies are us; None where nothing was measured."""

    elapsed_s: float
    requests: int
    events: int
    errors: int
    error_kinds: dict[str, int]
    open_connections: int
    """With a request in progress when the window ended."""
    latency_us: Quantiles | None
    ttft_us: Quantiles | None
    chunk_delay_us: Quantiles | None
    """From an event's stamp at the engine to its arrival here."""
    own_cpu_s: float
    machine_cpu_s: float
    """Of everything that ran on the machine, this run included."""
    watched: dict[str, Usage]
    """By the pid of the tree's root."""

    @property
    def foreign_cpu_share(self) -> float:
        """What processes that are no part of this run took, as a share of one core."""
        ours_s = self.own_cpu_s + sum(usage.cpu_s for usage in self.watched.values())
        return max(0.0, self.machine_cpu_s - ours_s) / self.elapsed_s

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "LoadResult":
        """The inverse of `to_json`; raises ValueError or KeyError for anything else."""
        values = json.loads(line)
        for name in ("latency_us", "ttft_us", "chunk_delay_us"):
            if values[name] is not None:
                values[name] = Quantiles(**values[name])
        values["watched"] = {pid: Usage(**usage) for pid, usage in values["watched"].items()}
        return cls(**values)
