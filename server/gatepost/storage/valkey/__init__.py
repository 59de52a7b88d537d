"""The shared store over Valkey: rate limits, wake-ups and notifications between replicas."""
