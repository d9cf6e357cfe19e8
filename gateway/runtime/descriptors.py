"""How many connections the process may hold: what the system allows, less what it needs itself."""

import os
import resource
from contextlib import suppress

RESERVED = 48
"""For probes, look-ups, logs and files of large forms, beside what is open at the start."""
CLIENTS_SHARE = 0.75
"""Of what is left; the rest is for engines, since what waits has a connection to none."""
CLIENTS_MIN = 8
LIMIT_MAX = 1 << 20
"""Where the system allows any number, this many are asked for."""
OPEN_NOW = "/proc/self/fd"


def raised_limit() -> int:
    """The limit on open files, raised as far as the system lets this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LIMIT_MAX if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LIMIT_MAX if soft == resource.RLIM_INFINITY else soft


def open_now() -> int:
    """Files that are open; 0 where the system does not tell."""
    with suppress(OSError):
        return len(os.listdir(OPEN_NOW))
    return 0


def connections_for(limit: int, used: int) -> int:
    """Clients that may be connected at once under this limit, with so many files open already."""
    return max(CLIENTS_MIN, int((limit - used - RESERVED) * CLIENTS_SHARE))
