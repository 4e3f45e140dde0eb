"""How ``sweep`` and ``baseline`` send requests, the arguments for that, and what a sweep measures."""

import argparse
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sidecar.commands.arguments import whole
from sidecar.commands.sweep.prompts import BUILT_IN, read_prompts
from sidecar.commands.sweep.workload import Level
from sidecar.errors import SettingsError
from sidecar.settings import Settings

MOST_AT_ONCE: Final = 1024
ENDPOINTS: Final = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}  # by name on the command line


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How requests are sent, whatever the server."""

    prompts: tuple[str, ...] = BUILT_IN
    model: str | None = None  # None: the first that the server names
    endpoint: str = ENDPOINTS["chat"]
    max_tokens: int = 128
    api_key: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | bool = True


def add_request_arguments(parser: argparse.ArgumentParser, description: str | None = None) -> None:
    """Adds the arguments that ``request_options`` reads."""
    group = parser.add_argument_group("requests", description)
    group.add_argument("--model", help="the model to request (default: the first under /v1/models)")
    group.add_argument("--endpoint", choices=tuple(ENDPOINTS), default="chat", help="default: chat")
    group.add_argument("--max-tokens", type=whole(2**31), default=128, metavar="N", help="per request (default: 128)")
    prompts = "lines of text, .jsonl, or a .json list such as ShareGPT's; the first 10,000 (default: 20 built in)"
    group.add_argument("--prompts", type=Path, metavar="FILE", help=prompts)
    group.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the servers' API key")


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
            raise SettingsError([f"--api-key-env={arguments.api_key_env}: empty or not set, or not printable ASCII"])
    return RequestOptions(
        prompts=BUILT_IN if arguments.prompts is None else read_prompts(arguments.prompts),
        model=arguments.model,
        endpoint=ENDPOINTS[arguments.endpoint],
        max_tokens=arguments.max_tokens,
        api_key=key,
        tls=settings.tls(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """``count`` requests per level and round; every round goes through all levels.

    ``servers`` are the addresses of the server to measure and of its baseline, if there is one. After ``seconds`` the
    sweep ends with what it has measured. ``settings`` are for reading vLLM's pages.
    """

    servers: tuple[str, ...]
    requests: RequestOptions
    levels: tuple[Level, ...]
    count: int
    rounds: int
    seconds: float
    settings: Settings

    @property
    def total(self) -> int:
        """Requests of the whole sweep, without the warm-up."""
        return len(self.levels) * self.count * self.rounds * len(self.servers)
