"""Which ``Host`` a request to our own page may name: the defence against DNS rebinding.

Any web page open in a browser can resolve its own domain to our address and then read our pages; its requests carry
that domain. Nobody can register an IP address, a name without a dot, or a name under the suffixes below.
"""

from collections.abc import Collection
from ipaddress import ip_address
from typing import Final

ANY: Final = "*"
_PRIVATE: Final = (".svc", ".local", ".internal", ".localhost")  # not in the public DNS; Kubernetes has the first two


def is_ours(host: str, allowed: Collection[str]) -> bool:
    """Whether ``host``, the header with or without a port, cannot be another site's; ``allowed`` are lower-case names.

    A request without the header passes: browsers always send one.
    """
    name, bracket, _ = host.strip().lower().partition("]")
    name = name.removeprefix("[") if bracket else name.partition(":")[0].removesuffix(".")
    return "." not in name or ANY in allowed or name in allowed or name.endswith(_PRIVATE) or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
