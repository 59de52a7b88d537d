"""What real clients have to wait for; the signatures outlive the call."""

from collections import Counter

from gatepost import CallContext, Pack

pack = Pack("signing")


@pack.tool()
async def sign(ctx: CallContext, label: str) -> str:
    """Sign something, once somebody has approved it."""
    Signed.labels[label] += 1
    return f"signed {label}"


class Signed:
    """What was signed, and how often."""

    labels: Counter[str] = Counter()
