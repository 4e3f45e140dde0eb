"""The values that the program gets from settings."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sidecar.settings import Settings, load_settings
from sidecar.settings.addresses import Address
from sidecar.settings.groups import Proxy, Target


@given(st.one_of(st.text(), st.integers(), st.floats(), st.binary(), st.lists(st.integers()), st.none()))
def test_no_value_breaks_a_reader(value):
    """Whatever YAML can hold is either read or refused with a ValueError that pydantic reports."""
    for leaf_value in (
        {"scrape_interval": value},
        {"listen": value},
        {"vllm_url": value},
        {"temperature_buckets": value},
    ):
        try:
            Settings(**leaf_value)
        except ValidationError:
            continue


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:9911", Address("0.0.0.0", 9911)),
        ("localhost:0", Address("localhost", 0)),
        ("[::]:65535", Address("::", 65535)),
        ("my-host_1.example:80", Address("my-host_1.example", 80)),
    ],
)
def test_addresses_read_and_print_the_same(text, address):
    settings = Settings(listen=text)
    assert settings.listen == address
    assert str(settings.listen) == text


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://host", "http://host"),
        ("https://host:8443/base/", "https://host:8443/base"),
        ("http://[::1]:8000//", "http://[::1]:8000"),
        ("http://me:p%40ss@host", "http://me:p%40ss@host"),
    ],
)
def test_urls_lose_their_trailing_slash_alone(text, url):
    assert Settings(vllm_url=text).vllm_url == url


def test_choices_and_flags_ignore_case():
    settings = load_settings(None, {"SPECDEC_LOG__LEVEL": "WARNING", "SPECDEC_REEXPORT": "True"})
    assert settings.log.level == "warning"
    assert settings.reexport is True
    assert load_settings(None, {"SPECDEC_SCRAPE_FILTERED": "0"}).scrape_filtered is False


def test_settings_cannot_be_changed():
    settings = Settings()
    with pytest.raises(ValidationError):
        settings.scrape_interval = 5.0
    with pytest.raises(ValidationError):
        settings.limits.labels = 5


def test_credentials_are_not_in_the_text_of_settings():
    assert "hunter2" not in repr(Settings(vllm_url="http://me:hunter2@host"))
    assert "hunter2" not in repr(Settings(targets=({"name": "a", "vllm_url": "http://me:hunter2@host"},)))


def test_without_targets_the_one_url_is_the_target():
    assert Settings(vllm_url="http://host:1").vllms == (Target(name="vllm", vllm_url="http://host:1"),)


def test_conflicting_settings_cannot_be_constructed_either():
    with pytest.raises(ValidationError, match="must not be above"):
        Settings(history=20.0)


def test_only_the_selected_source_listens():
    assert Settings(proxy=Proxy(listen="a:9911")).listeners == {"listen": Address("0.0.0.0", 9911)}
    assert Settings(requests={"source": "traces"}).listeners.keys() == {"listen", "traces.listen"}


@pytest.mark.parametrize("source", ["none", "middleware", "proxy", "traces"])
def test_every_source_works_with_the_defaults(source):
    assert load_settings(None, {"SPECDEC_REQUESTS__SOURCE": source}).requests.source == source


def test_one_port_on_two_addresses_or_chosen_by_the_kernel_is_no_conflict():
    Settings(requests={"source": "proxy"}, listen="127.0.0.1:80", proxy={"listen": "127.0.0.2:80"})
    Settings(requests={"source": "proxy"}, listen="0.0.0.0:0", proxy={"listen": "0.0.0.0:0"})
    Settings(vllm_url="http://other-host:9911")


def test_a_valid_ca_file_is_accepted():
    path = Path(__file__).with_name("ca.pem")
    assert load_settings(None, {"SPECDEC_VLLM_CA_FILE": str(path)}).vllm_ca_file == path
