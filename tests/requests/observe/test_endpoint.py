"""Which requests generate tokens."""

import pytest

from sidecar.requests.observe.endpoint import CHAT, COMPLETIONS, MESSAGES, RESPONSES, endpoint_of


@pytest.mark.parametrize(
    ("method", "path", "endpoint"),
    [
        ("POST", "/v1/chat/completions", CHAT),
        ("POST", "/v1/completions", COMPLETIONS),
        ("POST", "/v1/responses", RESPONSES),
        ("POST", "/v1/messages", MESSAGES),
        ("POST", "/foo/v1/chat/completions", CHAT),
        ("POST", "/v1/foo/v1/messages", MESSAGES),
        ("GET", "/v1/chat/completions", None),
        ("POST", "/v1/chat/completions/render", None),
        ("POST", "/v1/messages/count_tokens", None),
        ("POST", "/v1/responses/resp_1/cancel", None),
        ("POST", "/v1/embeddings", None),
        ("POST", "/chat/completions", None),
        ("POST", "", None),
    ],
)
def test_only_requests_that_generate_are_observed(method, path, endpoint):
    assert endpoint_of(method, path) == endpoint
