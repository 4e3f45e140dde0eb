"""Serves a vLLM page: ``python -m benchmarks.core.page_server ENGINES``.

Its numbers grow with every poll.
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks.core.pages import later, real_page, with_engines


def main(engines: int) -> None:
    page = with_engines(real_page(), engines)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        polls = 0

        def do_GET(self) -> None:
            if self.path == "/polls":
                body = str(Handler.polls).encode()
            else:
                Handler.polls += 1
                body = later(page, Handler.polls)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
