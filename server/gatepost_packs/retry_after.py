"""Parse the time after which another server accepts a retry."""

import email.utils
import time
from collections.abc import Mapping

LONGEST_WAIT_S = 86_400.0


def retry_after(headers: Mapping[str, str]) -> float | None:
    """
    Return the seconds to wait (RFC 9110 section 10.2.3), at most a day; None if there is no header.
    """
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_WAIT_S)
    try:
        at = email.utils.parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(at - time.time(), 0.0), LONGEST_WAIT_S)
