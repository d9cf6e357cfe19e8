"""Who leads which pool, and which gateways are there: one script a heartbeat, by Redis' clock."""

from pathlib import Path
from typing import Final, cast

from gateway.cluster.keys import Keys
from gateway.cluster.line import LineLostError, RedisSaidError
from gateway.cluster.link import Link, Script
from gateway.cluster.ports import (
    CHECKPOINT_BYTES_MAX,
    LEASE_S,
    Bid,
    Leader,
    LinkError,
    Standing,
)

KEPT_S: Final = 30 * 24 * 3600
"""How long epochs and the rest outlive the last gateway."""
CHECKPOINT_KEPT_S: Final = 60
"""Of whoever had how much longer ago, and of what ran then, nothing is left to go by."""
ABOUT_CHARACTERS_MAX: Final = 4096
BEAT: Final = Script(Path(__file__).with_name("scripts").joinpath("beat.lua").read_bytes())

Pair = tuple[bytes, bytes]


class RedisLease:
    """`Lease` over a link that knows `BEAT`."""

    def __init__(self, link: Link, keys: Keys, *, lease_s: float = LEASE_S) -> None:
        self._link = link
        self._keys = keys
        self._lease_ms = round(1000 * lease_s)
        self._wanted: set[str] = set()
        """Pools that may be held."""
        self._seen: dict[str, int] = {}
        """The greatest epoch of each pool."""

    async def beat(self, bid: Bid) -> Standing:
        """See `Lease`. A line that is silent ends within its time, and what is asked with it."""
        assert len(bid.about) <= ABOUT_CHARACTERS_MAX
        self._wanted.update(bid.wants)
        leaves = set(bid.leaves)
        if bid.goes:
            leaves |= self._wanted
        pools = list(dict.fromkeys((*sorted(leaves), *bid.keeps, *bid.wants, *bid.watches)))
        wishes = dict.fromkeys(bid.watches, "1") | dict.fromkeys(bid.wants, "2")
        keys = [*self._keys.gateways]
        arguments: list[bytes | str | int] = [bid.gateway, bid.about, int(bid.goes)]
        arguments += [self._lease_ms, 1000 * KEPT_S, 1000 * CHECKPOINT_KEPT_S]
        for pool in pools:
            keys += self._keys.of_pool(pool)
            checkpoint = bid.keeps.get(pool, b"")
            if len(checkpoint) > CHECKPOINT_BYTES_MAX:
                checkpoint = b""
            wish = wishes.get(pool, "0")
            arguments += [int(pool in leaves), checkpoint, wish, self._seen.get(pool, 0)]
        try:
            answer = await self._link.run(BEAT, keys, arguments)
        except (LineLostError, RedisSaidError) as error:
            raise LinkError(str(error)) from None
        self._wanted -= leaves - set(bid.wants)
        there, rows = cast("tuple[list[bytes], list[tuple[bytes, bytes, bytes]]]", answer)
        return self._standing(there, dict(zip(pools, rows, strict=True)), wishes)

    def _standing(
        self,
        there: list[bytes],
        rows: dict[str, tuple[bytes, bytes, bytes]],
        wishes: dict[str, str],
    ) -> Standing:
        words = [word.decode() for word in there]
        leaders = {}
        kept = {}
        for pool in wishes:
            holder, epoch, checkpoint = rows[pool]
            if holder:
                leaders[pool] = Leader(holder.decode(), int(epoch))
                self._seen[pool] = max(self._seen.get(pool, 0), int(epoch))
            if checkpoint:
                kept[pool] = checkpoint
        return Standing(
            gateways=dict(zip(words[::2], words[1::2], strict=True)), leaders=leaders, kept=kept
        )
