"""Feeds two hours' worth of polls to all code that keeps state.

Prints resident MiB after each hour, as JSON.
"""

import json
import os
import sys

from benchmarks.core.pages import real_page, with_engines
from benchmarks.core.process import rss_mib
from sidecar.memory import sparing

_HOUR = 3600
_SCRAPE = 15  # polls


def main(engines: int) -> None:
    with sparing():  # as the command line does
        from prometheus_client import generate_latest  # noqa: PLC0415 - see above

        import sidecar.commands.run  # noqa: PLC0415 - everything that a running sidecar imports
        from benchmarks.core.product import Product  # noqa: PLC0415 - see above
        from sidecar.export.exporter import Families, families  # noqa: PLC0415 - see above

    assert sidecar.commands.run
    product = Product(with_engines(real_page(), engines))
    resident = []
    for _ in range(2 * _HOUR):
        (body,) = product.bodies(1)
        product.poll(body)
        if product.polls % _SCRAPE == 0:
            generate_latest(Families(families(product.shown())))
        if product.polls % _HOUR == 0:
            resident.append(rss_mib(os.getpid()))
    print(json.dumps(resident), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
