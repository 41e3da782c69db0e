"""`python -m interview_demo.model_server`: serves until it is told to stop; prints its address first."""

import argparse
import sys

from interview_demo.model_server import LISTENING
from interview_demo.model_server.forwarding import Upstream
from interview_demo.model_server.serving import ModelServer


def main(argv: list[str] | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(prog="model_server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="0 (default) takes a free one")
    parser.add_argument("--pace", type=float, default=1.0, help="factor on the simulated thinking time")
    parser.add_argument("--upstream", help="base URL of a real model: forward and count instead of simulating")
    options = parser.parse_args(argv)
    upstream = Upstream(options.upstream) if options.upstream else None
    server = ModelServer(options.port, host=options.host, pace=options.pace, upstream=upstream)
    sys.stdout.write(f"{LISTENING}{server.url}\n")
    sys.stdout.flush()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
