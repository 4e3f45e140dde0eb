"""What a command line of vLLM says of speculation."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from sidecar.errors import InputError

_CONFIG: Final = ("--speculative-config", "-sc")
_UNQUOTED: Final = re.compile(r"(?:--speculative[-_]config|-sc)[=\s]\s*[\"']?(?=\{)")
_METHOD: Final = re.compile(r"\bmethod\b\W+(\w+)")
# What a shell reads as one: a comment, text in quotes, or a backslash and what follows it.
_UNIT: Final = re.compile(r"""(?<!\S)\#[^\n]*|'[^']*'|"(?:\\.|[^"\\])*"|\\.""", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\.", re.DOTALL)
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "zsh"})
_SCRIPT: Final = re.compile(r"-[a-z]*c")
# An image of vLLM and its tag, such as vllm/vllm-openai:v0.11.0. Some builders' own images have
# this name too, with tags that are not vLLM's version.
_IMAGE: Final = re.compile(r"(?:^|/)vllm-openai[\w.-]*:v?(\d+\.\d+(?:\.\d+)?)", re.ASCII)
_OTHER_BUILDERS: Final = ("lmcache/",)
_NO_VALUE: Final = "--"  # follows the last word
_OFF: Final = frozenset({"", "None", "null"})  # vLLM then has no configuration, and starts
# Flags of vLLM that set one key each (0.32, engine/arg_utils.py, ``create_speculative_config``).
_KEYS: Final = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}


@dataclass(frozen=True, slots=True)
class ServeLine:
    """The flags of a command line, each with the word that follows it, which may be the next flag.

    ``config`` is what ``--speculative-config`` and its like say, empty if nothing does, None if
    one is not a JSON object. ``unquoted`` is then the JSON object that the text has there, None if
    it has none, and ``mentioned`` the method that is named there, if any. ``dropped`` are the keys
    that the line has and vLLM drops, since the configuration is given again.

    ``image_version`` is the version in the tag of vLLM's image, None if no image is named.
    """

    flags: Mapping[str, str]
    config: Mapping[str, Any] | None
    unquoted: str | None = None
    mentioned: str | None = None
    image_version: str | None = None
    dropped: tuple[str, ...] = ()

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
    The text may have several lines, and be a shell's ``-c``.

    Raises:
        InputError: it is empty, or a quote is not closed.
    """
    try:
        words = _words(text)
    except ValueError as error:
        raise InputError(f"--args: {error}") from None
    if not words:
        raise InputError("--args: the command line is empty")

    flags: dict[str, str] = {}
    given = _Given()
    for word, following in pairwise((*words, _NO_VALUE)):
        name, equals, after = word.partition("=")
        value = after if equals else following
        flag, dot, key = name.partition(".")
        flag = flag.replace("_", "-")

        if flag in _CONFIG and not dot:
            given.json.append(_json_object(value))
        elif flag in _CONFIG:
            given.dotted.setdefault(flag, {})[_underscored(key)] = _json_value(value)
        elif flag in _KEYS:
            given.single[_KEYS[flag]] = value
        elif flag.startswith("-"):
            flags[flag] = value

    image_version = _image_version(words)
    config = given.config
    if config is not None:
        return ServeLine(flags, config, image_version=image_version, dropped=given.dropped)

    unquoted, mentioned = _unread(text)
    return ServeLine(flags, None, unquoted, mentioned, image_version)


@dataclass(frozen=True, slots=True)
class _Given:
    """What a line says of speculation, in each of the ways in which it can.

    ``json`` has None for what is no object, ``dotted`` the keys after a dot, by the flag before it.
    """

    json: list[dict[str, Any] | None] = field(default_factory=list)
    dotted: dict[str, dict[str, Any]] = field(default_factory=dict)
    single: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any] | None:
        """What is in force; None if vLLM refuses it, as what is no object, whatever follows.

        vLLM makes JSON of the keys after a dot and appends it to the line; the last JSON takes the
        place of all before (0.32, utils/argparse_utils.py).
        """
        if None in self.json:
            return None
        given = [*self.json, *self.dotted.values()]
        in_force = given[-1] if given else None
        return (in_force or {}) | self.single

    @property
    def dropped(self) -> tuple[str, ...]:
        """The keys that are not in force."""
        given = [*self.json, *self.dotted.values()]
        keys = dict.fromkeys(key for one in given for key in one or {})
        in_force = self.config or {}
        return tuple(key for key in keys if key not in in_force)


def _words(text: str) -> list[str]:
    """The words of a command line, those of a shell's ``-c`` last.

    Raises:
        ValueError: a quote is not closed.
    """
    words = shlex.split(_UNIT.sub(_on_one_line, text))
    scripts = [
        script
        for shell, option, script in zip(words, words[1:], words[2:], strict=False)
        if shell.rpartition("/")[2] in _SHELLS and _SCRIPT.fullmatch(option)
    ]
    return [*words, *(word for script in scripts for word in _words(script))]


def _on_one_line(unit: re.Match[str]) -> str:
    """As a shell does, drops comments and, but in single quotes, a backslash that ends a line."""
    if unit[0].startswith("#"):
        return ""
    if unit[0].startswith("'"):
        return unit[0]
    return _ESCAPED.sub(lambda escaped: escaped[0].removesuffix("\\\n"), unit[0])


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
    if text in _OFF:
        return {}
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(config, dict):
        return None
    return {_underscored(key): value for key, value in config.items()}


def _underscored(key: str) -> str:
    return key.replace("-", "_")
