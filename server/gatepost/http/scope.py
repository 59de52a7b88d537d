"""The keys that we add to the ASGI scope; the caller's is the gate's own (`gatepost_authz`)."""

import gatepost_authz.middleware

REQUEST_ID = "gatepost.request_id"
"""Set by Edge: the request's id, a string of letters, digits and `-`."""

ANSWER_HEADERS = "gatepost.answer_headers"
"""Set by the check of CORS: pairs of bytes, headers that every answer to the request gets."""

HEADERS_BY_NAME = gatepost_authz.middleware.HEADERS_BY_NAME
"""
Set by the connection, or else by Edge: the request's headers by name, each with its last value.
"""

HEAD_AT_MOST = "gatepost.head_at_most"
"""Set by the connection: an upper bound for the bytes of the request's head."""

WHOLE_BODY = "gatepost.body"
"""Set by the connection: a body that arrived before the application waited for it."""

CALLER = gatepost_authz.middleware.CALLER
"""Set by Bearer: the caller."""

RPC = "gatepost.rpc"
"""
Set by the MCP endpoint: method, `name` and `uri` of a JSON-RPC request, as the client sent them.
"""
