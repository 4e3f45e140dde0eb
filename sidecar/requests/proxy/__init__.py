"""The streaming reverse proxy: the data path of the ``proxy`` request source.

relay.py listens; client.py reads heads (head.py) and gives each to an exchange (exchange.py), which sends it up
(request_body.py, uplink.py, pool.py, upstream.py) and the response down (response.py). framing.py knows where a body
ends. observe.py is how the rest of the sidecar looks on.
"""

from sidecar.requests.proxy.observe import ExchangeOutcome, Headers, Observer, ObserverFactory
from sidecar.requests.proxy.options import RelayOptions, Upstream
from sidecar.requests.proxy.relay import Relay
from sidecar.requests.proxy.stats import RelayStats

__all__ = [
    "ExchangeOutcome",
    "Headers",
    "Observer",
    "ObserverFactory",
    "Relay",
    "RelayOptions",
    "RelayStats",
    "Upstream",
]
