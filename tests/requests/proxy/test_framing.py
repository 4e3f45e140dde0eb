"""Bodies decode alike however the network cuts them, and broken framing is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import Refusal
from sidecar.requests.proxy.framing import ChunkedDecoder, LengthDecoder
from tests.requests.proxy.proxy_tools import cut, places

CHUNKS = b"5;x=y\r\nhello\r\n1\r\n!\r\n00a\r\n0123456789\r\n0\r\nT: u\r\nV:\r\n\r\nrest"


@given(places=places)
def test_chunked_body_cut_anywhere_decodes_alike(places):
    decoder = ChunkedDecoder()
    pieces = cut(CHUNKS, places)
    payload = b""
    while not decoder.done:
        payload += decoder.decode(pieces.pop(0))
    assert payload == b"hello!0123456789"
    assert decoder.rest + b"".join(pieces) == b"rest"


@given(length=st.integers(1, 20), places=places)
def test_body_of_a_length_ends_there(length, places):
    data = b"0123456789abcdefghijk"
    decoder = LengthDecoder(length)
    pieces = cut(data, places)
    payload = b""
    while not decoder.done:
        payload += decoder.decode(pieces.pop(0))
    assert payload == data[:length]
    assert decoder.rest + b"".join(pieces) == data[length:]


@given(data=st.binary(max_size=200))
def test_decoder_raises_nothing_but_its_own_error(data):
    decoder = ChunkedDecoder()
    try:
        decoder.decode(data)
    except Refusal:
        return
    assert decoder.done or len(data) < 600


@pytest.mark.parametrize("line", [b"1;" + b"x" * 300, b"1" * 300, b"0\r\nA: " + b"b" * 9000])
def test_endless_lines_of_a_chunked_body_are_refused_before_they_end(line):
    with pytest.raises(Refusal):
        ChunkedDecoder().decode(line)
