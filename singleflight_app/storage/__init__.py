"""Flight rows in PostgreSQL: named statements, the app's own pool, and a store in memory for local mode."""
