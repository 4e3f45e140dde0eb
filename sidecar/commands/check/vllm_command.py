"""Checks the speculation flags of a vLLM command line."""

import difflib
import json
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.commands.check.vllm_flags import KEYS, METHODS, TABLE, Entry, Version, wrong

_NEED_MODEL: Final = frozenset({"draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "dflash", "dspark"})
PLUGIN: Final = "specdec"  # the name of our entry point
_NUMBER: Final = "num_speculative_tokens"
_SHORT: Final = {"-sc": "--speculative-config", "-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size"}


@dataclass(frozen=True, slots=True)
class Finding:
    """``is_fault`` is False for something that works but is worth knowing."""

    text: str
    is_fault: bool = True


@dataclass(slots=True)
class _Command:
    environment: dict[str, str] = field(default_factory=dict)
    flags: dict[str, str | None] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def findings(line: str, version: Version) -> list[Finding]:
    """The problems of the command line in this version of vLLM, and notes on it.

    Raises:
        ValueError: it cannot be split into words; the message says why.
    """
    command = _read(shlex.split(line))
    return [*(Finding(fault) for fault in command.faults), *_judged(command, version)]


def _read(words: list[str]) -> _Command:
    """The flags with their values; vLLM takes underscores for hyphens, and keys of a JSON value after a dot."""
    command = _Command()
    words = [word for word in words if word.strip()]
    for place, word in enumerate(words):
        if not _is_flag(word):
            name, equals, value = word.partition("=")
            if equals and name.isidentifier():
                command.environment.setdefault(name, value)
            continue
        name, equals, value = word.partition("=")
        following = words[place + 1] if place + 1 < len(words) else None
        given = value if equals else following if following is not None and not _is_flag(following) else None
        head, dot, key = name.partition(".")
        head = _SHORT.get(head, head.replace("_", "-"))
        if head == "--speculative-config":
            _read_config(command, key if dot else None, given)
        else:
            command.flags[head] = given
    for flag, key in (("--spec-method", "method"), ("--spec-model", "model"), ("--spec-tokens", _NUMBER)):
        if flag in command.flags:
            command.config[key] = _plain(command.flags[flag])
    return command


def _is_flag(word: str) -> bool:
    """Whether it is one, and no negative number."""
    return word.startswith("-") and not word.lstrip("-").replace(".", "", 1).isdigit()


def _plain(value: str | None) -> Any:
    try:
        return json.loads(value or "")
    except (ValueError, RecursionError):
        return value


def _read_config(command: _Command, key: str | None, value: str | None) -> None:
    if key is not None:
        command.config[key.replace("-", "_")] = _plain(value)
        return
    try:
        found = json.loads(value or "")
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        command.config |= {name.replace("-", "_"): one for name, one in found.items()}
    else:
        command.faults.append(
            "--speculative-config: not a JSON object; in a shell, put it into single quotes: "
            '--speculative-config \'{"method": "ngram", "num_speculative_tokens": 3}\''
        )


def _judged(command: _Command, version: Version) -> Iterator[Finding]:
    plugins = command.environment.get("VLLM_PLUGINS")
    if plugins is not None and PLUGIN not in map(str.strip, plugins.split(",")):
        yield Finding(f"VLLM_PLUGINS={plugins} does not list {PLUGIN}, so vLLM does not load the plug-in; add it")
    old = [entry for flag in command.flags if (entry := wrong("flag", flag, version)) is not None]
    yield from (_finding(entry, entry.name) for entry in old)
    if not command.config:
        if not old and not command.faults and not any(flag.startswith("--speculative-") for flag in command.flags):
            yield Finding("speculation is off: there is no --speculative-config", is_fault=False)
        return
    yield from _keys(command.config, version)
    yield from _method(command, version)
    yield from _beside(command, version)


def _finding(entry: Entry, shown: str) -> Finding:
    doubt = "" if entry.is_verified else " (the exact version was not verified)"
    return Finding(f"{shown} {entry.problem}{doubt}; {entry.remedy}")


def _keys(config: dict[str, Any], version: Version) -> Iterator[Finding]:
    for key in config:
        if (entry := wrong("key", key, version)) is not None:
            yield _finding(entry, f"the key {key}")
        elif key not in KEYS and not any((one.kind, one.name) == ("key", key) for one in TABLE):
            yield _unknown(f"the key {key}", key, KEYS)


def _unknown(shown: str, name: str, known: Collection[str]) -> Finding:
    near = difflib.get_close_matches(name, known, n=1)
    return Finding(f"{shown} is unknown" + (f"; did you mean {near[0]}?" if near else ""))


def _method(command: _Command, version: Version) -> Iterator[Finding]:
    config = command.config
    method, tokens = config.get("method"), config.get(_NUMBER)
    if method is None and not isinstance(config.get("model"), str):
        yield Finding("neither a method nor a model is set; set one of them")
    if isinstance(method, str):
        if (entry := wrong("method", method, version)) is not None:
            yield _finding(entry, f"the method {method}")
        elif method not in METHODS and not method.endswith("_mtp"):
            yield _unknown(f"the method {method}", method, METHODS)
        if method in _NEED_MODEL and not config.get("model"):
            yield Finding(f"the method {method} needs a model")
    if tokens is None and isinstance(method, str) and method in {"ngram", "ngram_gpu", "draft_model"}:
        yield Finding(f"{_NUMBER} is missing; 3 is a good start")
    elif tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1):
        yield Finding(f"{_NUMBER} must be a whole number above 0")


def _beside(command: _Command, version: Version) -> Iterator[Finding]:
    flags, config = command.flags, command.config
    target = _plain(flags.get("--tensor-parallel-size")) or 1
    draft = config.get("draft_tensor_parallel_size")
    if draft is not None and draft not in (1, target):
        yield Finding(f"draft_tensor_parallel_size must be 1 or the target's {target}, not {draft}")
    elif draft not in (None, target) and config.get("method") == "draft_model":
        yield Finding(f"draft_tensor_parallel_size must be the target's {target} for draft_model (seen in 0.32)")
    if "--disable-log-stats" in flags:
        yield Finding("--disable-log-stats hides vLLM's metrics, so nothing can be monitored; leave it out")
    if "--pipeline-parallel-size" in flags and _plain(flags["--pipeline-parallel-size"]) != 1 and version < (0, 16):
        yield Finding("pipeline parallelism does not work with speculation up to 0.15")
    if version >= (0, 8):
        fate = (
            "requests with min_p or logit_bias are rejected with 400 (0.14 and later; seen in 0.32)"
            if version >= (0, 14)
            else "requests with min_p or penalties are served without speculation, logit_bias may be ignored (to 0.13)"
        )
        yield Finding(fate, is_fault=False)
