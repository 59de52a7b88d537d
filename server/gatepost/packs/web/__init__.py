"""Pages of the web as text for a model."""
