"""An OpenAI-compatible model of the demo's own, in a process of its own, that counts the calls it gets.

Its answers are simulated and say so; its count is what the demo's numbers are checked against, so it
stands outside of everything that it counts. With an upstream it forwards to a real model and still counts.
"""

SIMULATED_MODEL = "simulated-interviewer-1"
LISTENING = "model server listening on "  #: what it prints once it accepts calls, followed by its address
STAGE_HEADER = "X-Interview-Stage"  #: tells it which stage a call belongs to
