"""What a sweep or a baseline sends: prompts, how they are requested, and the arguments for it."""

import argparse
import json
import os
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from sidecar.commands.arguments import CACERT_HELP, read_input, whole
from sidecar.errors import InputError, SettingsError
from sidecar.settings import Settings

# Set by other arguments, or always; ``n``: the tokens of several choices over their time are no
# request's speed.
_ARGUMENTS: Final = ("model", "temperature", "max_tokens", "stream", "n")
MOST_AT_ONCE: Final = 1024
# By name on the command line.
ENDPOINTS: Final = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_MOST_BYTES: Final = 1024**3  # ShareGPT's file is 670 MB
_MOST_PROMPTS: Final = 10_000
_HUMAN: Final = ("human", "user")

BUILT_IN: Final = (
    (
        "Write a Python function that returns the n-th Fibonacci number, "
        "with a docstring and two examples."
    ),
    "Explain to a new colleague how a hash table works and when it is slow.",
    "List ten questions to ask before moving a database to another data centre.",
    "Write a short story about a lighthouse keeper who finds a radio that still works.",
    "Translate into French: The meeting starts at nine, and the agenda is on the second page.",
    "A train leaves at 8:40 and drives 210 km at 84 km/h. When does it arrive? Show each step.",
    "Write an SQL query for the five customers with the highest revenue in each country.",
    "Summarize what a load balancer does, in five sentences.",
    "Write a polite e-mail that asks a supplier for a later delivery date.",
    "Give a JSON object with the name, capital and population of three European countries.",
    "Compare tea and coffee in a table with four rows.",
    "Write a unit test for a function that reverses the words of a sentence.",
    "Describe the water cycle to a child of eight.",
    "Write a bash script that removes log files older than two weeks, and explain each line.",
    "What are the arguments for and against a four-day week?",
    "Write a poem of eight lines about rain on a tin roof.",
    "Explain the difference between a process and a thread with one example each.",
    "Plan a three-day trip to a city by the sea for two people with a small budget.",
    "Refactor this: for i in range(len(a)):\n    if a[i] > 0:\n        b.append(a[i] * 2)",
    "Write the rules of a simple board game for four players.",
)


def read_prompts(path: Path) -> tuple[str, ...]:
    """The first 10,000 prompts of a file.

    It has lines of text, JSON lines (``.jsonl``) or one JSON list (``.json``). A JSON value is a
    string, an object with a ``prompt``, or one with ``conversations`` or ``messages`` (ShareGPT's
    and OpenAI's formats), whose first human turn is used; values without a prompt are skipped.

    Raises:
        InputError: the file cannot be read, is too large, or has no prompts.
    """
    try:
        entries = _prompts(read_input(path, _MOST_BYTES).decode(), path.suffix)
        prompts = tuple(islice(filter(None, entries), _MOST_PROMPTS))
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path}: not UTF-8 text, or not JSON as its name says ({type(error).__name__})"
        ) from None

    if not prompts:
        raise InputError(f"{path}: no prompts")
    return prompts


def _prompts(text: str, suffix: str) -> Iterable[str | None]:
    if suffix == ".json":
        return map(_prompt, json.loads(text))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return map(_prompt, map(json.loads, lines)) if suffix == ".jsonl" else lines


def _prompt(entry: object) -> str | None:
    prompt = entry
    if isinstance(entry, dict):
        turns = entry.get("conversations", entry.get("messages"))
        prompt = _first_human(turns) if isinstance(turns, list) else entry.get("prompt")
    return prompt if isinstance(prompt, str) else None


def _first_human(turns: Sequence[object]) -> object:
    """What the first human turn of a conversation says; None without one."""
    for turn in turns:
        if isinstance(turn, dict) and turn.get("from", turn.get("role")) in _HUMAN:
            return turn.get("value", turn.get("content"))
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How requests are sent, whatever the server."""

    prompts: tuple[str, ...] = BUILT_IN
    model: str | None = None  # None: the first that the server names
    endpoint: str = "chat"  # a key of ``ENDPOINTS``
    max_tokens: int = 128
    # More fields of each request's JSON.
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    api_key: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | bool = True


def add_request_arguments(
    parser: argparse.ArgumentParser, description: str | None = None, *, endpoint: str = "chat"
) -> None:
    """Adds the arguments that ``request_options`` reads; ``endpoint`` is the default."""
    group = parser.add_argument_group("requests", description)
    group.add_argument("--model", help="the model to request (default: the first under /v1/models)")
    group.add_argument(
        "--endpoint", choices=tuple(ENDPOINTS), default=endpoint, help=f"default: {endpoint}"
    )
    group.add_argument(
        "--max-tokens",
        type=whole(2**31),
        default=128,
        metavar="N",
        help="per request (default: 128)",
    )

    prompts = (
        "lines of text, or .jsonl or a .json list of strings or of objects with prompt, messages"
        " or conversations (ShareGPT's); the first 10,000 (default: 20 built in)"
    )
    group.add_argument("--prompts", type=Path, metavar="FILE", help=prompts)

    extra = "more fields of each request, such as '{\"top_k\": 20}'"
    group.add_argument("--extra-body", type=_json_object, default={}, metavar="JSON", help=extra)
    group.add_argument(
        "--api-key-env", metavar="NAME", help="environment variable that holds the servers' API key"
    )
    group.add_argument("--cacert", type=Path, metavar="FILE", help=CACERT_HELP)


def _json_object(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or fields.keys() & _ARGUMENTS:
        raise argparse.ArgumentTypeError(f"expected a JSON object without {', '.join(_ARGUMENTS)}")
    return fields


def request_options(arguments: argparse.Namespace, settings: Settings) -> RequestOptions:
    """The options that the arguments ask for.

    Raises:
        InputError: ``--prompts`` cannot be used.
        SettingsError: the API key cannot be used.
    """
    key = None
    if arguments.api_key_env is not None:
        key = os.environ.get(arguments.api_key_env)
        if not key or not key.isascii() or not key.isprintable():
            raise SettingsError(
                [f"--api-key-env={arguments.api_key_env}: empty or not set, or not printable ASCII"]
            )

    return RequestOptions(
        prompts=BUILT_IN if arguments.prompts is None else read_prompts(arguments.prompts),
        model=arguments.model,
        endpoint=arguments.endpoint,
        max_tokens=arguments.max_tokens,
        extra_body=arguments.extra_body,
        api_key=key,
        tls=settings.tls(),
    )
