"""Base64url with one spelling per value."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost_authz import base64url
from tests.support.issuers import b64


@given(st.binary(max_size=60))
def test_what_jose_writes_is_read(data: bytes) -> None:
    """Every value's canonical spelling decodes to it."""
    assert base64url.decode(b64(data).encode()) == data


@pytest.mark.requirement("A20", "H16")
@given(st.binary(max_size=12) | st.text("AQgwEIMz-_+/= \n.\0", max_size=9).map(str.encode))
def test_no_value_has_a_second_spelling(segment: bytes) -> None:
    """Whatever decodes, encodes back to the same text: padding, blanks, stray bits are refused."""
    try:
        data = base64url.decode(segment)
    except ValueError:
        return
    assert base64.urlsafe_b64encode(data).rstrip(b"=") == segment


@pytest.mark.requirement("A20", "H16")
@pytest.mark.parametrize("text", ["A", "AB", "AAB", "AA==", "AA=", "A+==", "A/AA", "AA\n", " AA"])
def test_other_spellings_are_refused(text: str) -> None:
    """Each of these is taken by an ordinary decoder."""
    with pytest.raises(ValueError, match=r"."):
        base64url.decode(text.encode())
