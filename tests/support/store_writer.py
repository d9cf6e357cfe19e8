"""A process that writes to a store as an operator would, and says what was acknowledged.

`python -m tests.support.store_writer URL NAME FROM TO`: each commit, number n, puts `NAME-x` and
`NAME-y` with {"n": n} and replaces `NAME-<n - 1>` by `NAME-<n>`; after it n is printed.
"""

import asyncio
import os
import sys

from gateway.tenancy.store.opening import store_of
from tests.support.stores import DEED, drop, put


async def write(url: str, name: str, first: int, last: int) -> None:
    """All commits from `first` to before `last`."""
    store = store_of(url)
    await store.open()
    for n in range(first, last):
        writes = [put(f"{name}-{part}", {"n": n, "x": "y" * 300}) for part in ("x", "y", str(n))]
        await store.commit([*writes, drop(f"{name}-{n - 1}")], DEED)
        # Unbuffered, and whole: the reader must not count what was not acknowledged.
        os.write(1, f"{n}\n".encode())
    await store.close()


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
