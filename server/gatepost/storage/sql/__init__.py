"""Records in SQLite or PostgreSQL; imported only if a database is configured."""
