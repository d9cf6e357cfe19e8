"""Buckets of S3, and of what speaks like it, that are given up when they do not answer.

Loaded only where such a bucket is configured: s3fs is an extra. Credentials, addresses and whatever
else an operator says of them are fsspec's and botocore's affair.
"""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import fsspec
from fsspec.asyn import sync_wrapper
from s3fs import S3FileSystem

CALL_S_MAX = 60.0
"""Of one call: its client bounds the wait for an answer only, not that for `100 Continue`."""
CLIENT: Mapping[str, Any] = MappingProxyType(
    {"read_timeout": 15, "retries": {"mode": "standard", "total_max_attempts": 3}}
)


class Bucket(S3FileSystem):  # type: ignore[misc] # s3fs has no types
    """As s3fs has it, but that no call lasts for ever."""

    retries = 1
    """Its client tries again, and batches do; as many times each would be minutes."""

    async def _call_s3(self, method: str, *parts: Any, **more: Any) -> Any:
        try:
            async with asyncio.timeout(CALL_S_MAX):
                return await super()._call_s3(method, *parts, **more)
        except TimeoutError:
            # Not as itself: fsspec would drop the words.
            raise ConnectionError(f"no answer to {method} within {CALL_S_MAX:.0f} s") from None

    call_s3 = sync_wrapper(_call_s3)


def bucket_at(url: str) -> tuple[Bucket, str]:
    """The file system of a bucket, and the folder in it."""
    own = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
    # Without its memory of listings, which knows nothing of what others write.
    system = Bucket(
        config_kwargs={**CLIENT, **own}, use_listings_cache=False, skip_instance_cache=True
    )
    return system, str(Bucket._strip_protocol(url))
