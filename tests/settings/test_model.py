"""The values that the program gets."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sidecar.settings import Settings, load_settings
from sidecar.settings.field_types import parse_duration


@given(
    st.one_of(
        st.text(), st.integers(), st.floats(), st.binary(), st.lists(st.integers()), st.none()
    )
)
def test_any_value_is_read_or_refused(value):
    """Whatever YAML can hold is either read or refused with a ValueError that pydantic reports."""
    for name in ("scrape_interval", "listen", "vllm_url", "temperature_buckets"):
        try:
            Settings(**{name: value})
        except ValidationError:
            continue


@pytest.mark.parametrize(
    "text", ["0.0.0.0:9911", "localhost:0", "[::]:65535", "my-host_1.example:80"]
)
def test_an_address_is_printed_as_it_was_written(text):
    address = Settings(listen=text).listen
    assert str(address) == text
    assert (address.host, address.port) == (
        text.rpartition(":")[0].strip("[]"),
        int(text.rpartition(":")[2]),
    )


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://host", "http://host"),
        ("https://host:8443/base/", "https://host:8443/base"),
        ("http://[::1]:8000//", "http://[::1]:8000"),
        ("http://me:p%40ss@host", "http://me:p%40ss@host"),
        ("http://host/serve/metrics/", "http://host/serve"),
    ],
)
def test_a_url_loses_only_a_trailing_slash_and_the_metrics_page(text, url):
    """People paste the address of the page itself."""
    assert Settings(vllm_url=text).vllm_url == url


def test_choices_and_flags_ignore_case():
    settings = load_settings(None, {"SPECDEC_LOG__LEVEL": "WARNING", "SPECDEC_REEXPORT": "True"})
    assert settings.log.level == "warning"
    assert settings.reexport is True
    assert load_settings(None, {"SPECDEC_SCRAPE_FILTERED": "0"}).scrape_filtered is False


def test_the_text_of_settings_has_no_credentials():
    text = repr(
        Settings(
            vllm_url="http://me:hunter2@host",
            alerting={"alertmanagers": ["http://me:hunter2@host"]},
        )
    )
    assert "hunter2" not in text


def test_vllm_is_verified_against_the_systems_authorities_an_own_one_or_not_at_all():
    path = Path(__file__).with_name("ca.pem")
    context = load_settings(None, {"SPECDEC_VLLM_CA_FILE": str(path)}).tls()
    assert len(context.get_ca_certs()) == 1
    assert Settings().tls() is True
    assert Settings(vllm_tls_verify=False).tls() is False


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(
            ("500ms", 0.5),
            ("1s", 1),
            ("5m", 300),
            ("1h", 3600),
            ("1.5m", 90),
            (" 2 s ", 2),
            ("7", 7),
            ("0.25", 0.25),
        ),
        *((text, None) for text in ("", "fast", "nan", "1e999", "1m30s", "1 d", "-1s", "61m")),
    ],
)
def test_a_duration_is_a_number_of_seconds_or_has_a_unit(text, seconds):
    with nullcontext() if seconds else pytest.raises(ValueError, match="expected"):
        assert parse_duration(text, 0.1, 3600) == seconds


def test_milliseconds_are_the_nearest_float():
    """Multiplying by 0.001 would be off in the last digit."""
    assert all(parse_duration(f"{n}ms", 0, 1) == n / 1000 for n in range(1000))
