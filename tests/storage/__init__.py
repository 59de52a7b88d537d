"""The stores, over every backend."""
