"""How long another server asks to be left alone."""

import email.utils
import time
from collections.abc import Mapping

LONGEST_WAIT_S = 86_400.0


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait (RFC 9110 section 10.2.3), within a day; None where nothing is said."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_WAIT_S)
    try:
        at = email.utils.parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(at - time.time(), 0.0), LONGEST_WAIT_S)
