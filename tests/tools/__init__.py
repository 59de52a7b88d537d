"""Writing tools: schemas, results, the registry and the runner."""
