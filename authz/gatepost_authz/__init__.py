"""An OAuth 2.0 resource server for any ASGI application."""
