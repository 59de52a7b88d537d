"""Run a server process: services, reload, background work, metrics."""
