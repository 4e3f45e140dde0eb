"""Which ``Host`` a request to our own page may name: the defence against DNS rebinding.

Any web page open in a browser can resolve its own domain to our address and then read our pages; its requests carry
that domain. Nobody can register an IP address, a name without a dot, or a name under the suffixes below.
"""

from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

ANY: Final = "*"
_PRIVATE: Final = (".svc", ".local", ".internal", ".localhost")  # not in the public DNS; Kubernetes has the first two


def is_ours(host: str, allowed: Collection[str]) -> bool:
    """Whether ``host``, the header with or without a port, cannot be another site's; ``allowed`` are lower-case names.

    A request without the header passes: browsers always send one.
    """
    name, bracket, _ = host.strip().lower().partition("]")
    name = name.removeprefix("[") if bracket else name.partition(":")[0].removesuffix(".")
    is_private = "." not in name or name.endswith(_PRIVATE)
    return is_private or ANY in allowed or name in allowed or address_of(name) is not None


def address_of(text: str) -> IPv4Address | IPv6Address | None:
    """The IP address in this text; None if it is not one."""
    try:
        return ip_address(text)
    except ValueError:
        return None
