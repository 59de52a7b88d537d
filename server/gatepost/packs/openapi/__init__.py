"""APIs by their OpenAPI descriptions (`openapi_*`), and operations as tools: see `tools`."""
