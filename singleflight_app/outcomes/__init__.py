"""Outcomes: how a result is stored, and where it can be had again without a call."""
