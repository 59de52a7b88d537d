"""The development server: endpoint, sample tools, and an issuer with three users."""
