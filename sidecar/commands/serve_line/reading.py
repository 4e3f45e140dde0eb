"""What a command line of vLLM says of speculation."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from sidecar.errors import InputError

_CONFIG: Final = ("--speculative-config", "-sc")
_UNQUOTED: Final = re.compile(r"(?:--speculative[-_]config|-sc)[=\s]\s*[\"']?(?=\{)")
_METHOD: Final = re.compile(r"\bmethod\b\W+(\w+)")
# An image of vLLM and its tag, such as vllm/vllm-openai:v0.11.0. Some builders' own images have
# this name too, with tags that are not vLLM's version.
_IMAGE: Final = re.compile(r"(?:^|/)vllm-openai[\w.-]*:v?(\d+\.\d+(?:\.\d+)?)", re.ASCII)
_OTHER_BUILDERS: Final = ("lmcache/",)
# Flags of vLLM that set one key each (0.32, engine/arg_utils.py, ``create_speculative_config``).
_KEYS: Final = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}


@dataclass(frozen=True, slots=True)
class ServeLine:
    """The flags of a command line, each with the word that follows it, which may be the next flag.

    ``config`` is what ``--speculative-config`` and its like say, empty if nothing does, None if it
    is not a JSON object. ``unquoted`` is then the JSON object that the text has there, None if it
    has none, and ``mentioned`` the method that is named there, if any.

    ``image_version`` is the version in the tag of vLLM's image, None if no image is named.
    """

    flags: Mapping[str, str]
    config: Mapping[str, Any] | None
    unquoted: str | None = None
    mentioned: str | None = None
    image_version: str | None = None

    @property
    def keys(self) -> Mapping[str, Any]:
        """The keys of the speculative configuration, as far as it can be read."""
        return self.config or {}

    @property
    def method(self) -> str | None:
        """The method of speculation; None if the line leaves it to vLLM."""
        named = self.keys.get("method")
        return named if isinstance(named, str) else None

    def is_on(self, key: str) -> bool:
        """Whether a key of the configuration that is true or false is true."""
        return str(self.keys.get(key, False)).lower() not in {"false", "0"}


def read_line(text: str) -> ServeLine:
    """Reads a command line as a shell and vLLM do.

    Like vLLM, it takes underscores for hyphens in flags, and keys of the configuration after a dot.

    Raises:
        InputError: it is empty, or a quote is not closed.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"--args: {error}") from None
    if not words:
        raise InputError("--args: the command line is empty")

    flags: dict[str, str] = {}
    config: dict[str, Any] | None = {}
    for word, following in pairwise((*words, "")):
        name, equals, given = word.partition("=")
        value = given if equals else following
        flag, dot, key = name.partition(".")
        flag = flag.replace("_", "-")

        if flag in _CONFIG and not dot:
            config = _json_object(value)
        elif flag in _CONFIG:
            config = (config or {}) | {_underscored(key): _json_value(value)}
        elif flag in _KEYS:
            config = (config or {}) | {_KEYS[flag]: value}
        elif flag.startswith("-"):
            flags[flag] = value

    image_version = _image_version(words)
    if config is not None:
        return ServeLine(flags, config, image_version=image_version)

    unquoted, mentioned = _unread(text)
    return ServeLine(flags, None, unquoted, mentioned, image_version)


def _image_version(words: Sequence[str]) -> str | None:
    """The version in the tag of the first image of vLLM."""
    for word in words:
        match = _IMAGE.search(word)
        if match is not None and not any(builder in word for builder in _OTHER_BUILDERS):
            return match[1]
    return None


def _unread(text: str) -> tuple[str | None, str | None]:
    """The JSON object that a shell would have taken apart, and the method that is named in it."""
    start = _UNQUOTED.search(text)
    if start is None:
        return None, None

    given = text[start.end() :]
    method = _METHOD.search(given.partition("}")[0])
    named = None if method is None else method[1]
    try:
        _, end = json.JSONDecoder().raw_decode(given)
    except (ValueError, RecursionError):
        return None, named
    return given[:end], named


def _json_value(text: str) -> Any:
    """The value of a key after a dot: JSON if it is any, else the text itself, as for vLLM."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(config, dict):
        return None
    return {_underscored(key): value for key, value in config.items()}


def _underscored(key: str) -> str:
    return key.replace("-", "_")
