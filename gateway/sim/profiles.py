"""How long one engine step takes on a given model and GPU, and how much such an engine holds.

Knows nothing of queues or requests: a step is four numbers in, seconds out.

A step is the sum of what it must do:

    T = linear(n) + layers x (c0 + c1 x decodes) + kv_token x KV read + pair x attended + cpu

`linear(n)` is the time of all matrix products for n tokens. It is flat while reading the weights
dominates and proportional once arithmetic does, with a soft knee between: `(a^P + (b n)^P)^(1/P)`.
The values of (a, b, P) were fitted to sums over the per-operator medians that Vidur publishes under
the MIT licence (Agrawal et al., MLSys 2024, arXiv 2405.05465; github.com/microsoft/vidur); those
medians themselves are in `measured.py`. The decode cost of a resident KV token is its bytes over
the memory bandwidth (Llama-2-7B: 0.5 MiB a token, Llama-3-8B with grouped queries: 0.125 MiB).
Causal attention of a prefill costs 4 x layers x hidden FLOPs for each (token, token it looks at)
pair, at half the peak. The 70B model has grouped queries (320 KiB a token) and runs on four GPUs,
each with a quarter of the weights, the KV and the attention; what they say to one another is left
out.
`speed` divides the whole: it is a clock that runs faster, not a better GPU.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One model on one GPU: the coefficients of a step, and the engine's natural sizes."""

    name: str
    weights_ms: float
    """a: the floor of `linear`, reading all weights once."""
    token_ms: float
    """b: what one more token costs once arithmetic dominates."""
    knee: float = 1.0
    """P: 1 adds floor and slope; larger values bend more sharply from one to the other."""
    linear_ms: tuple[tuple[int, float], ...] = ()
    """`linear` as measured, by tokens; where there is any, the three numbers above do not count.
    Between two counts the times lie on a line, beyond the last they go on with its slope."""
    layers: int = 0
    layer_us: float = 11.0
    """c0: launching one layer's attention."""
    layer_sequence_us: float = 0.1
    """c1: the same, for each decoding sequence."""
    kv_token_us: float = 0.0
    kv_token_bytes: int = 0
    """KV of one token over all GPUs, 2 bytes a number: what a migration copies."""
    attended_pair_ns: float = 0.0
    cpu_ms: float = 0.0
    kv_blocks: int
    block_tokens: int = 16
    max_num_seqs: int = 256
    max_model_len: int = 4096
    speed: float = 1.0

    def step_s(self, tokens: int, *, decodes: int, kv_tokens: int, attended: int) -> float:
        """Seconds of one step.

        Args:
            tokens: all tokens computed in it, prefill and decode.
            decodes: sequences that produce one token from their KV.
            kv_tokens: KV tokens these read.
            attended: (token, earlier token) pairs of the prefill chunks.
        """
        if self.linear_ms:
            linear_ms = interpolated(self.linear_ms, tokens)
        else:
            knee = self.knee
            linear_ms = (self.weights_ms**knee + (self.token_ms * tokens) ** knee) ** (1 / knee)
        attention_us = (
            self.layers * (self.layer_us + self.layer_sequence_us * decodes)
            + self.kv_token_us * kv_tokens
            + self.attended_pair_ns * attended / 1000
        )
        return (linear_ms + self.cpu_ms + attention_us / 1000) / 1000 / self.speed

    def faster(self, speed: float) -> "Profile":
        """The same engine with all its times divided by `speed` (> 0)."""
        if speed <= 0:
            raise ValueError(f"speed must be positive, got {speed}")
        return replace(self, speed=self.speed * speed)


def interpolated(points: tuple[tuple[int, float], ...], at: int) -> float:
    """The value at `at` on the line through `points`, which rise; flat before the first."""
    index = bisect_left(points, (at,))
    if index == 0:
        return points[0][1]
    if len(points) == 1:
        return points[0][1]
    (left, low), (right, high) = points[min(index, len(points) - 1) - 1 :][:2]
    return low + (high - low) * (at - left) / (right - left)


A100_LLAMA2_7B = Profile(
    name="a100-llama2-7b",
    weights_ms=9.07,
    token_ms=0.06473,
    knee=1.75,
    layers=32,
    kv_token_us=0.322,
    kv_token_bytes=524_288,
    attended_pair_ns=3.4,
    kv_blocks=7_600,
)

H100_LLAMA2_7B = Profile(
    name="h100-llama2-7b",
    weights_ms=5.47,
    token_ms=0.02011,
    knee=1.25,
    layers=32,
    kv_token_us=0.196,
    kv_token_bytes=524_288,
    attended_pair_ns=1.1,
    kv_blocks=7_600,
)

A100_LLAMA3_8B = Profile(
    name="a100-llama3-8b",
    weights_ms=9.70,
    token_ms=0.06938,
    knee=1.5,
    layers=32,
    kv_token_us=0.080,
    kv_token_bytes=131_072,
    attended_pair_ns=3.4,
    kv_blocks=29_000,
    max_model_len=8192,
)

A100_LLAMA2_70B_TP4 = Profile(
    name="a100-llama2-70b-tp4",
    weights_ms=25.38,
    token_ms=0.1633,
    knee=1.75,
    layers=80,
    kv_token_us=0.050,
    kv_token_bytes=327_680,
    attended_pair_ns=4.25,
    kv_blocks=26_000,
)

H100_LLAMA2_70B_TP4 = Profile(
    name="h100-llama2-70b-tp4",
    weights_ms=14.75,
    token_ms=0.0559,
    knee=1.75,
    layers=80,
    kv_token_us=0.031,
    kv_token_bytes=327_680,
    attended_pair_ns=1.38,
    kv_blocks=26_000,
)

DEMO = Profile(
    # For watching: four slots, 20 ms a token, so that 50 tokens take one second, busy or not.
    name="demo",
    weights_ms=20.0,
    token_ms=0.002,
    kv_blocks=2_048,
    max_num_seqs=4,
    max_model_len=8192,
)

INSTANT = Profile(
    # For tests of everything but time: a step takes none.
    name="instant",
    weights_ms=0.0,
    token_ms=0.0,
    kv_blocks=29_000,
    max_model_len=32_768,
)

EVEN = Profile(
    # For measuring what stands before an engine: a step takes 20 ms, whatever is in it.
    name="even",
    weights_ms=20.0,
    token_ms=0.0,
    kv_blocks=29_000,
    max_model_len=8192,
)

PROFILES = (
    DEMO,
    EVEN,
    INSTANT,
    A100_LLAMA2_7B,
    H100_LLAMA2_7B,
    A100_LLAMA3_8B,
    A100_LLAMA2_70B_TP4,
    H100_LLAMA2_70B_TP4,
)


def profile_named(name: str) -> Profile:
    """The profile of that name.

    Raises:
        ValueError: no such profile; the message lists those there are.
    """
    for profile in PROFILES:
        if profile.name == name:
            return profile
    known = ", ".join(profile.name for profile in PROFILES)
    raise ValueError(f"unknown engine profile {name!r}; known: {known}")
