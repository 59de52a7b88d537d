"""Connect to upstreams over HTTP and stdio, for both eras of the protocol."""
