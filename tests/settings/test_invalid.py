"""Settings with the defaults of those that are invalid, for a sidecar that must start."""

import json
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import SettingsError
from sidecar.settings import Settings, load_settings
from sidecar.settings.groups import groups, keys, variable
from sidecar.settings.reading import read_settings

TEXTS = st.one_of(st.text(), st.sampled_from(["5", "0.5", "1s", "-1", "{}", "[]", "info", "/a"]))


def differing(settings):
    """The settings that do not have their defaults, with their values."""
    default = Settings()
    values = {key: attrgetter(key)(settings) for key in keys()}
    return {key: value for key, value in values.items() if value != attrgetter(key)(default)}


def test_only_what_is_invalid_has_its_default_and_every_line_is_that_of_a_refusal(config):
    """`run --ignore-invalid-settings` says the same as a start that is refused."""
    path = config(
        "limits: {series: 5, page_byte: 3, engines: 4}\nlog: {level: debug}\nthresholds: 5\nx: 1"
    )
    environ = {"SPECDEC_VLLM_URL": "foo", "SPECDEC_SCRAPE_INTERVAL": "2s", "SPECDEC_LISTN": "x"}

    loaded = read_settings(path, environ)

    assert differing(loaded.settings) == {
        "limits.engines": 4,
        "log.level": "debug",
        "scrape_interval": 2.0,
    }
    assert len(loaded.problems) == 6
    with pytest.raises(SettingsError) as refused:
        load_settings(path, environ)
    assert tuple(refused.value.messages) == loaded.problems


def test_what_is_valid_is_loaded_alike(config):
    path = config("latency_window: 2m\nlimits: {engines: 4}")

    loaded = read_settings(path, {})

    assert (loaded.settings, loaded.problems) == (load_settings(path, {}), ())


@pytest.mark.parametrize("text", ["a: [", "- 1", "listen: a:1\nlisten: b:2"])
def test_of_a_file_that_is_no_settings_only_the_environment_counts(config, text):
    """Nothing in it can be told from a mistake."""
    loaded = read_settings(config(text), {"SPECDEC_SCRAPE_INTERVAL": "2s"})

    assert differing(loaded.settings) == {"scrape_interval": 2.0}
    assert len(loaded.problems) == 1


def test_settings_that_contradict_each_other_have_their_defaults(config):
    """So does what is to be in order with them."""
    path = config("scrape_interval: 30s\nlatency_window: 20s\nhistory: 2h\nkv_peak_window: 30s")

    loaded = read_settings(path, {})

    assert differing(loaded.settings) == {"kv_peak_window": 30.0}
    assert loaded.problems == (
        "scrape_interval=30, latency_window=20: the first must not be above the second",
    )
    assert loaded.consequences == ("history: also has its default",)


def test_a_valid_setting_that_contradicts_the_default_of_an_invalid_one_has_its_default(config):
    loaded = read_settings(config("latency_window: fast\nhistory: 60s"), {})

    assert differing(loaded.settings) == {}
    assert [line.partition(" ")[0] for line in loaded.problems] == ["latency_window"]
    assert loaded.consequences == ("history: also has its default",)


def test_a_contradiction_is_told_beside_an_invalid_setting_of_the_same_kind(config):
    loaded = read_settings(config("scrape_interval: x\nlatency_window: 200s\nhistory: 100s"), {})

    assert [line.partition(":")[0] for line in loaded.problems] == [
        "scrape_interval (in config.yaml)=x",
        "latency_window=200, history=100",
    ]
    assert (differing(loaded.settings), loaded.consequences) == ({}, ())


@given(
    st.dictionaries(st.sampled_from([*map(variable, keys()), "SPECDEC_X"]), TEXTS),
)
def test_any_environment_gives_settings_that_can_be_used(environ):
    settings = read_settings(None, environ).settings

    without_file = settings.model_copy(update={"web_config_file": None})
    assert read_settings(None, written(without_file)).settings == without_file


def written(settings):
    """The settings as variables."""
    values = settings.model_dump(mode="json", exclude={"web_config_file", "baseline_file"})
    texts = {}
    for name, value in values.items():
        nested = value if name in groups() else {"": value}
        for key, each in nested.items():
            text = each if isinstance(each, str) else json.dumps(each)
            texts[variable(f"{name}.{key}".rstrip("."))] = text
    return {name: text for name, text in texts.items() if text != "null"}


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        ("web_config_file: gone.yaml", {}),
        ("web_config_fil: web.yaml", {}),
        ("web-config-file: web.yaml", {}),
        ("web_cofnig_file: web.yaml", {}),
        ("", {"SPECDEC_WEBCONFIG_FILE": "web.yaml"}),
        ("", {"SPECDEC_WEB_CONF": "web.yaml"}),
        ("alerting: {web_config_file: web.yaml}", {}),
        ("web_config_file: web.yaml\nlog: [", {}),
        ("", {"SPECDEC_WEB_CONFIG_FILE": "gone.yaml"}),
        ("", {"SPECDEC_WEB_CONFIG_FILES": "web.yaml"}),
    ],
)
def test_pages_that_should_have_had_a_password_stay_locked(config, text, environ):
    """Nobody knows the password: the hash is of random digits."""
    web = read_settings(config(text), environ).settings.web_config_file

    assert web.is_locked
    assert (web.tls, len(web.users)) == (None, 1)


@pytest.mark.parametrize("text", ["log: [", "listen: 5", "x: 1", "web: {}"])
def test_other_mistakes_lock_nothing(config, text):
    assert read_settings(config(text), {}).settings.web_config_file is None


def test_the_file_that_should_have_had_the_password_is_read_again_once_it_changes(config):
    """Until then nobody gets in, rather than everybody."""
    path = config("", "web.yaml")

    locked = read_settings(None, {"SPECDEC_WEB_CONFIG_FILE": str(path)}).settings.web_config_file

    assert list(locked.files) == [path]
