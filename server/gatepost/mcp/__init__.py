"""Serve the Model Context Protocol: requests of clients in, calls of the runner out."""
