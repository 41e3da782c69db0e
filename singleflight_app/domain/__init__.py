"""What a flight is, in plain Python: no Django, no server, no clock of its own."""
