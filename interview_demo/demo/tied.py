"""`python -m interview_demo.demo.tied MODULE ...`: runs a module, and ends with the program that started it.

Standard input is the tie: a pipe whose other end the starter holds, and loses however it dies. Its end is the
end of this whole process group.
"""

import os
import runpy
import signal
import sys
import threading


def main() -> None:
    """Run the module named by the first argument as if Python had been given it."""
    threading.Thread(target=_end_with_starter, name="tie", daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _end_with_starter() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.killpg(0, signal.SIGTERM)


if __name__ == "__main__":
    main()
