"""The life of a server process: services, reload, background work, metrics."""
