"""The keys that we add to the ASGI scope; the caller's is the gate's own (`gatepost_authz`)."""

REQUEST_ID = "gatepost.request_id"
"""By Edge: the request's id, a string of letters, digits and `-`."""

FOLDED = "gatepost.headers"
"""By Edge: the request's headers by name, each with its last value."""

HEAD_AT_MOST = "gatepost.head_at_most"
"""By the connection: how many bytes the request's head cannot exceed."""

WHOLE_BODY = "gatepost.body"
"""By the connection: a body that was there before anybody waited for it."""

HELD = "gatepost.held"
"""
By a connection that can hold an answer back: None, in whose place whoever answers may put a
`Pledge`. The answer leaves once that is kept.
"""

INSTEAD = "gatepost.instead"
"""By whoever answers: makes what is said instead of an answer whose `Pledge` was broken."""
