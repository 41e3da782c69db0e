"""The demo command's parts: it starts real processes, plays an interview over HTTP, and judges the numbers.

`running` starts and stops the cluster, `playing` is the interview with its duplicates, `tally` puts what
callers saw beside what the model server counted, `verdict` says what was not kept, `telling` prints.
"""
