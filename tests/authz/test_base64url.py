"""Base64url with one spelling per value."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost_authz import base64url
from tests.support.issuers import base64url_encoded


@given(st.binary(max_size=60))
def test_the_canonical_encoding_is_decoded(data: bytes) -> None:
    """Every value's canonical encoding decodes to that value."""
    assert base64url.decode(base64url_encoded(data).encode()) == data


@pytest.mark.requirement("A20", "H16")
@given(st.binary(max_size=12) | st.text("AQgwEIMz-_+/= \n.\0", max_size=9).map(str.encode))
def test_only_the_canonical_encoding_is_decoded(segment: bytes) -> None:
    """Padding, white space and stray bits are refused."""
    try:
        data = base64url.decode(segment)
    except ValueError:
        return
    assert base64.urlsafe_b64encode(data).rstrip(b"=") == segment


@pytest.mark.requirement("A20", "H16")
@pytest.mark.parametrize("text", ["A", "AB", "AAB", "AA==", "AA=", "A+==", "A/AA", "AA\n", " AA"])
def test_non_canonical_encodings_are_refused(text: str) -> None:
    """An ordinary decoder accepts each of these."""
    with pytest.raises(ValueError, match=r"."):
        base64url.decode(text.encode())
