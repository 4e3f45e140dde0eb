"""vLLM's endpoints that generate tokens."""

from typing import Final, Literal

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
"""A path, without the root path that may precede it."""

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
ENDPOINTS: Final[dict[str, Endpoint]] = {
    CHAT: CHAT, COMPLETIONS: COMPLETIONS, RESPONSES: RESPONSES, MESSAGES: MESSAGES,
}  # fmt: skip


def endpoint_of(method: str, path: str) -> Endpoint | None:
    """The generation endpoint that a request goes to, under any root path; None for any other.

    ``path`` is percent-decoded, as in an ASGI scope.
    """
    return ENDPOINTS.get(path[path.rfind("/v1/") :]) if method == "POST" else None
