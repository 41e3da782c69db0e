"""For common companions of a project: what an SDK's reply cost, and the like."""
