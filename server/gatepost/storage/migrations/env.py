"""
Run a command of Alembic with our connection, our tables, and one transaction around all steps.
"""

from alembic import context

from gatepost.storage.sql.tables import METADATA

# The transaction belongs to the caller, which commits all steps or none, in SQLite as well.
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    on_version_apply=context.config.attributes["tell"],
)
context.run_migrations()
