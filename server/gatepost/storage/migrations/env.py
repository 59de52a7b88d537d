"""What Alembic runs for each command: our connection, our tables, one transaction around all."""

from alembic import context

from gatepost.storage.sql.tables import METADATA

# The transaction is the caller's: it commits all steps or none, in SQLite too.
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    on_version_apply=context.config.attributes["tell"],
)
context.run_migrations()
