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


def chunks(size, count):
    return b"%x\r\n%b\r\n" % (size, b"x" * size) * count


@pytest.mark.parametrize("pieces", [1, 7, 100_000])
def test_many_small_chunks_are_refused_and_a_few_are_not(pieces):
    for size, count, refused in ((1, 1000, False), (1, 1001, True), (63, 1001, True), (64, 5000, False)):
        data = chunks(size, count) + b"0\r\n\r\n"
        decoder = ChunkedDecoder(bounded=True)
        payload = 0
        try:
            for start in range(0, len(data), max(len(data) // pieces, 1)):
                payload += len(decoder.decode(data[start : start + max(len(data) // pieces, 1)]))
        except Refusal:
            assert refused
        else:
            assert not refused
            assert payload == size * count


def test_small_chunks_from_the_upstream_are_not_refused():
    decoder = ChunkedDecoder()
    assert decoder.decode(chunks(1, 5000) + b"0\r\n\r\n") == b"x" * 5000
    assert decoder.done
