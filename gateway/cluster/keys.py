"""Names of the keys and channels in Redis; the braces keep them together in a cluster."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keys:
    """All that gateways with one prefix have there."""

    prefix: str

    def of(self, name: str) -> str:
        """One key."""
        return f"{{{self.prefix}}}:cluster:{name}"

    def inbox(self, gateway: str) -> str:
        """The channel that one gateway listens to."""
        return self.of(f"to:{gateway}")

    @property
    def gateways(self) -> tuple[str, str]:
        """(sorted set: gateway to when it is gone, hash: gateway to what it says of itself)."""
        return self.of("gateways"), self.of("abouts")

    def of_pool(self, pool: str) -> tuple[str, str, str]:
        """(lease, epoch, checkpoint) of one pool."""
        return self.of(f"lease:{pool}"), self.of(f"epoch:{pool}"), self.of(f"checkpoint:{pool}")
