"""Python's collector of garbage, in a process that serves."""

import gc

COLLECT_AFTER = 20_000
"""Objects that may gather before it looks: 700 access lines that wait are no garbage."""


def settle() -> None:
    """
    From here on requests come, which leave no cycles behind.

    What lives now lives until the end: it need not be walked again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 10, 10)
