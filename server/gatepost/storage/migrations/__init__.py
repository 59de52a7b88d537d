"""
The schema's history, forward only: one file a revision in `versions`.

Alembic runs `env.py` and finds the files; `storage/sql/database_schema.py` decides when.
"""
