"""GitHub and GitLab: small servers of both, by their documented endpoints, and the tools."""
