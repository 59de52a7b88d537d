"""The keys that we add to the ASGI scope; the caller's is the gate's own (`gatepost_authz`)."""

import gatepost_authz.middleware

NO_CONTENT = gatepost_authz.middleware.NO_CONTENT

REQUEST_ID = "gatepost.request_id"
"""By Edge: the request's id, a string of letters, digits and `-`."""

FOLDED = gatepost_authz.middleware.FOLDED
"""By the connection, or else by Edge: the request's headers by name, each with its last value."""

HEAD_AT_MOST = "gatepost.head_at_most"
"""By the connection: how many bytes the request's head cannot exceed."""

WHOLE_BODY = "gatepost.body"
"""By the connection: a body that was there before anybody waited for it."""

CALLER = gatepost_authz.middleware.CALLER
"""By Bearer: the caller."""

RPC = "gatepost.rpc"
"""By the MCP endpoint: method, `name` and `uri` of a JSON-RPC request, as the client sent them."""
