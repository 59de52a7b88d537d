"""The one client by which tools speak HTTP to others."""
