"""The one client by which tools speak HTTP to others, against a small internet of our own."""
