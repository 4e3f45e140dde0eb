"""What the middleware sends to the sidecar: packets of msgpack over a Unix SEQPACKET socket, which loses nothing."""

from typing import Annotated, Final, Literal

import msgspec

from sidecar.requests.record import Count, RequestRecord, RequestStart

VERSION: Final = 2
MAX_PACKET_BYTES: Final = 65_536
MAX_PACKET_EVENTS: Final = 20  # with the longest names and histograms that a record may have, 20 fit

DROPPED_QUEUE_FULL: Final = "queue_full"  # the sidecar was down or slow for longer than the queue lasts
DROPPED_INTERNAL: Final = "internal"  # the middleware failed: a request went unobserved

Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern="^[a-z0-9_]+$")]


class Packet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Starts, then ends, of one vLLM process's requests; ids are unique within the process.

    ``dropped`` counts what was lost since the last packet, by reason. The sidecar trusts nothing that it reads: each
    field has a type and a range, and a packet that violates one is refused as a whole.
    """

    version: Literal[2]
    dropped: Annotated[dict[Reason, Count], msgspec.Meta(max_length=64)]
    started: Annotated[list[RequestStart], msgspec.Meta(max_length=MAX_PACKET_EVENTS)]
    finished: Annotated[list[RequestRecord], msgspec.Meta(max_length=MAX_PACKET_EVENTS)]
