"""Records in SQLite or PostgreSQL; imported only where a database is configured."""
