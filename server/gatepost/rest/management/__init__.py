"""The REST routes with which a tenant's administrators manage upstreams and agents."""
