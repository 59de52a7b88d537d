"""Everything on one laptop: the endpoint, sample tools, and an issuer that knows three users."""
