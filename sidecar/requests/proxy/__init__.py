"""The ``proxy`` request source: a streaming reverse proxy in front of vLLM that observes what it forwards.

- ``source``: from the settings to a running proxy
- ``server``: listens, keeps the deadlines, drains
- ``client``: a client connection, which reads heads and starts exchanges
- ``exchange``: one request and its response
- ``uplink``: an exchange's way to the upstream; ``upstream``: the upstream connections and their pool
- ``head``: reads a message head; ``request`` and ``response``: what is forwarded of it; ``framing``: bodies
- ``observer``: turns exchanges into request records
- ``options``, ``patience``, ``outcomes``, ``sockets``: limits and times; how exchanges end; socket options
"""
