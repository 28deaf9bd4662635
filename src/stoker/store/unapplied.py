"""Find the migrations that are not applied to a store."""

from django.db import connections


def unapplied_migrations(alias: str) -> list[str]:
    """Return the names of Stoker's migrations that are not applied to this database.

    A squashed migration counts as applied if all the migrations that it replaces are.

    Raises:
        DatabaseError: the database cannot be asked.
    """
    from django.db.migrations.loader import MigrationLoader  # most processes never need it

    loader = MigrationLoader(connections[alias])
    ours = sorted(key for key in loader.graph.nodes if key[0] == "stoker")
    return [key[1] for key in ours if key not in loader.applied_migrations]
