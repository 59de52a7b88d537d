"""Development keys, tokens and an issuer for one machine; never for production."""
