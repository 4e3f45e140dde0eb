"""Another client of a server under attack: ``python -m benchmarks.floods.probe PORT PATH``.

It is a process of its own, so that the flood's does not delay it. It sends a request every 5 ms on one connection until
its input ends, and prints the median and the longest wait in seconds and the number of failed requests as JSON.
"""

import http.client
import json
import os
import statistics
import sys
import time


def main(port: int, path: str) -> None:
    os.set_blocking(sys.stdin.fileno(), False)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=("127.0.0.2", 0))
    waits: list[float] = []
    failed = 0
    while sys.stdin.buffer.read() is None:  # nothing yet, rather than the end
        start = time.monotonic()
        try:
            connection.request("GET", path)
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            failed += 1
            connection.close()
        if not waits:
            print(flush=True)  # it is asking
        waits.append(time.monotonic() - start)
        time.sleep(0.005)
    print(json.dumps([statistics.median(waits), max(waits), failed]))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
