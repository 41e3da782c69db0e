"""Hints across processes: look at the database. Losing one costs a poll interval, nothing else."""
