"""Read web pages as text for a model."""
