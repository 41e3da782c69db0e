"""What the engine announces, and who listens: metrics, ledger, logs."""
