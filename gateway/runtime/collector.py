"""How often the garbage collector looks for cycles: in the gateway, and in what measures it."""

import gc

OBJECTS_BETWEEN_LOOKS = 20_000
"""Made and not freed since the garbage collector looked last."""


def calm_collector() -> None:
    """Look for garbage cycles seldom: requests make few, and a look costs all that lives."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_LOOKS)
