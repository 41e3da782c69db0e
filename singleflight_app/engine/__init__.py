"""The protocol: who may call, who waits, and what happens when one of them dies."""
