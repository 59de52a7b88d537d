"""Turn OpenAPI descriptions into tools: `openapi_*`, and one tool per operation."""
