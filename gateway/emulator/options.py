"""What an emulated engine is: its models, sizes and habits, as one frozen value.

Refuses to know how they are asked for; the command line and the tests both fill this in.
"""

from dataclasses import dataclass
from hashlib import sha256

from gateway.emulator.faults import parse_fault
from gateway.sim.engine_config import EngineConfig, SchedulingPolicy
from gateway.sim.profiles import Profile, profile_named


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorOptions:
    """Options of one emulator; None means what the profile says."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free port; the emulator's `port` tells which."""
    models: tuple[str, ...] = ("emulated",)
    """The first is the base model, the others are its LoRA adapters."""
    profile: str = "demo"
    speed: float = 1.0
    """Divides all engine times: 10 is an engine on fast-forward."""
    max_num_seqs: int | None = None
    kv_blocks: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int = 2048
    scheduling_policy: SchedulingPolicy = "fcfs"
    max_num_queued_reqs: int | None = None
    """With so many sequences waiting and running, requests are answered 503."""
    embeddings: bool = False
    """Serve the routes that generate nothing: embeddings, scores, ranks, classes, pooling."""
    sleep_mode: bool = False
    """Whether it can be put to sleep and woken, as vLLM can in its development mode."""
    seed: int = 0
    """Of sampling without a seed, and of the output jitter."""
    output_jitter: float = 0.0
    """0: answers have max_tokens tokens; j: (1 +- j) x max_tokens/1.5, never above max_tokens."""
    natural_tokens: int | None = None
    """Length of a chat answer without max_tokens; None: to the end of the context, as in vLLM."""
    mean_tokens: int | None = None
    """After so many tokens on average an answer ends by itself, where is told by its tokens alone;
    None: never, as a model that knows no end."""
    sse_keep_alive_s: float = 0.0
    """A `: keep-alive` comment after so much silence in a stream; 0: never."""
    api_key: str | None = None
    """Asked for on /v1 routes when set."""
    shutdown_timeout_s: float = 0.0
    """Told to stop by SIGTERM, requests are left so long to finish; then they hang."""
    faults: tuple[str, ...] = ()
    """Active from the start; see `faults.parse_fault` for the form."""

    def __post_init__(self) -> None:
        if not self.models or len(set(self.models)) < len(self.models):
            raise ValueError("models: at least one, all different")
        if not 0 <= self.output_jitter <= 1:
            raise ValueError(f"output_jitter must be in 0..1, got {self.output_jitter}")
        if self.mean_tokens is not None and self.mean_tokens < 1:
            raise ValueError(f"mean_tokens must be at least 1, got {self.mean_tokens}")
        if not self.shutdown_timeout_s >= 0:
            raise ValueError(f"shutdown_timeout_s must be >= 0, got {self.shutdown_timeout_s}")
        self.engine_profile()
        for fault in self.faults:
            parse_fault(fault)

    def engine_profile(self) -> Profile:
        """The step times.

        Raises:
            ValueError: unknown profile, or a speed that is not positive.
        """
        return profile_named(self.profile).faster(self.speed)

    def engine_config(self) -> EngineConfig:
        """The limits of the engine behind the server."""
        profile = self.engine_profile()
        return EngineConfig(
            max_num_seqs=self.max_num_seqs or profile.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            kv_blocks=self.kv_blocks or profile.kv_blocks,
            block_tokens=profile.block_tokens,
            policy=self.scheduling_policy,
        )

    def context_tokens(self) -> int:
        """Most tokens of prompt and answer; never more than the KV cache holds."""
        config = self.engine_config()
        wanted = self.max_model_len or self.engine_profile().max_model_len
        return min(wanted, config.kv_blocks * config.block_tokens)

    def fingerprint(self) -> str:
        """vLLM's system_fingerprint: equal for engines with equal flags, wherever they listen."""
        flags = (
            *(self.models, self.profile, self.engine_config(), self.context_tokens()),
            *(self.max_num_queued_reqs, self.sse_keep_alive_s),
        )
        return f"vllm-0.32.0-{sha256(repr(flags).encode()).hexdigest()[:8]}"
