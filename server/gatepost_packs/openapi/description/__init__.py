"""Descriptions of HTTP APIs: OpenAPI 3.0, 3.1 and Swagger 2.0, read, resolved and called."""
