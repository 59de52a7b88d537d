"""
The schema's history, forward only: one file a revision in `versions`.

Alembic runs `env.py` and finds the files; `storage/sql/schema.py` decides when.
"""
