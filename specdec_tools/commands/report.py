"""``report``: a table by temperature from a running sidecar, to paste into a ticket.

Or, for benchmarks, its acceptance as vLLM replays it.
"""

import argparse
import asyncio
import json
import os
import ssl
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import sleep
from typing import Any, Final

from sidecar.analysis.checklist.checklist import Readiness
from sidecar.analysis.judgement import Basis, Verdict
from sidecar.commands.arguments import (
    add_sidecar_user,
    authorities,
    base_url,
    with_sidecar_user,
)
from sidecar.errors import BadStatus, ScrapeError
from sidecar.log import redacted
from sidecar.settings import Settings
from sidecar.settings.groups import USER_FILE_VARIABLE
from specdec_tools.commands.acceptance_profile import model_profiles, profile_lines, profiles_json
from specdec_tools.commands.sidecar_status import own_url, sidecar_status, status_lines
from specdec_tools.commands.terminal import broken, colored, has_colors, plain

HELP = "print what the status page of a running sidecar says, for a terminal or a ticket"
_NO_VERDICT: Final = 3
_NET_NEGATIVE: Final = 4
_UNDECIDED: Final = 5
_NO_PROFILE: Final = 3
_READY: Final = {
    Readiness.TRY: 0,
    Readiness.INSUFFICIENT_DATA: _NO_VERDICT,
    Readiness.LEAVE_OFF: _NET_NEGATIVE,
    Readiness.UNDECIDED: _UNDECIDED,
}
_SPECULATES: Final = 6
_WATCH_SECONDS: Final = 2  # as the status page
_CLEAR: Final = "\033[H\033[2J"
_NOT_A_SIDECAR: Final = "its JSON is not from a specdec-sidecar of this version"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``report``."""
    parser.add_argument(
        "--url",
        type=base_url,
        help="a running sidecar (default: this machine's, at SPECDEC_LISTEN)",
    )
    add_sidecar_user(parser)
    parser.add_argument(
        "--cacert",
        type=Path,
        metavar="FILE",
        help="CA certificates (PEM) to verify the certificate of --url",
    )
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument(
        "--exit-code",
        action="store_true",
        help=f"exit with {_NET_NEGATIVE} if a model is measured to lose, or its acceptance"
        f" collapsed, with {_NO_VERDICT} if one has no verdict, with {_UNDECIDED} if one loses by"
        " the rule of thumb alone, else with 0 (1: no report)",
    )
    asked.add_argument(
        "--ready",
        action="store_true",
        help="beside a vLLM that does not speculate: exit with 0 if speculation is worth a try,"
        f" with {_READY[Readiness.LEAVE_OFF]} if it is to be left off for now, with"
        f" {_READY[Readiness.UNDECIDED]} if it may pay or not, with {_NO_VERDICT} if that is not"
        f" known yet, with {_SPECULATES} if a model already speculates (1: no report)",
    )
    asked.add_argument(
        "--profile",
        action="store_true",
        help="print the acceptance since vLLM started, by position and temperature, as the"
        " --speculative-config with which a benchmark replays it; exit with"
        f" {_NO_PROFILE} if it is not known",
    )

    output = parser.add_mutually_exclusive_group()
    output.add_argument(
        "--format", choices=("text", "markdown"), default="text", help="default: text"
    )
    output.add_argument(
        "--json", action="store_true", help="JSON, for scripts: the sidecar's own, or the profile"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="also the tables by temperature, group and engine, and all notes; Markdown has them",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help=f"print it anew every {_WATCH_SECONDS} s, until it is interrupted",
    )
    # The running sidecar says which of its settings are invalid.
    parser.set_defaults(ignore_invalid_settings=True)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0, or 1 if no sidecar answers.

    With ``--exit-code`` it returns a code for the verdict, with ``--ready`` one for the checklist,
    and with ``--profile`` 3 if a model has no profile. With ``--watch`` it ends when it is
    interrupted.

    Raises:
        InputError: a file with the password or the certificates cannot be used.
    """
    if not arguments.watch:
        return _run_once(arguments, settings)

    clear = _CLEAR if sys.stdout.isatty() else "\n"
    code = 0
    try:
        while True:
            print(clear, end="")
            code = _run_once(arguments, settings)
            sys.stdout.flush()
            sleep(_WATCH_SECONDS)
    except KeyboardInterrupt:
        return code


def _run_once(arguments: argparse.Namespace, settings: Settings) -> int:
    url: str = arguments.url or own_url(settings)
    origin = redacted(url)
    # Without --url, the address is this machine's; the certificate is issued for other names.
    tls = authorities(arguments.cacert) or arguments.url is not None
    with_user = with_sidecar_user(url, arguments.user_file, os.environ)

    try:
        status = asyncio.run(sidecar_status(with_user, tls=tls))
        if arguments.profile:
            return _print_profiles(status, arguments)
        text = "\n".join(_lines(status, origin, arguments))
        code = _exit_code(status, arguments)
    except ScrapeError as error:
        fault = f"{error} ({error.reason})"
        hint = _hint(error)
    except (AttributeError, LookupError, TypeError, ValueError):
        fault = _NOT_A_SIDECAR
        hint = _hint(None)
    else:
        print(text)
        return code

    print(f"no report from {origin}: {fault}; {hint}", file=sys.stderr)
    return 1


def _lines(status: Mapping[str, Any], origin: str, arguments: argparse.Namespace) -> Iterator[str]:
    is_markdown = arguments.format == "markdown"
    if arguments.json:
        yield json.dumps(status, indent=2, ensure_ascii=False)
        return

    lines = status_lines(
        status,
        origin,
        is_markdown=is_markdown,
        is_brief=not (arguments.all or is_markdown),
        paint=colored if has_colors() and not is_markdown else plain,
    )
    yield from lines if is_markdown else broken(lines)


def _print_profiles(status: Mapping[str, Any], arguments: argparse.Namespace) -> int:
    """The exit code; says on standard error why a model has no profile.

    Raises:
        LookupError, TypeError, ValueError: the status is not a sidecar's.
    """
    models = model_profiles(status)
    missing = [
        f"no profile of {model.model_name}: {model.missing}" for model in models if model.missing
    ]
    if not models:
        missing.append(f"no profile: {status['answer']['text']}")

    if arguments.json:
        print(json.dumps(profiles_json(models), indent=2, ensure_ascii=False))
    else:
        for model in models:
            for line in profile_lines(model, is_markdown=arguments.format == "markdown"):
                print(line)

    for sentence in missing:
        print(sentence, file=sys.stderr)
    return _NO_PROFILE if missing else 0


def _exit_code(status: Mapping[str, Any], arguments: argparse.Namespace) -> int:
    """The one that was asked for, and why there is no checklist to tell it by; 0 if none was.

    Raises:
        LookupError, TypeError, ValueError: the status is not a sidecar's.
    """
    if arguments.ready:
        code = _ready_code(status)
        if code == _SPECULATES:
            print("a model already speculates, so there is no checklist", file=sys.stderr)
        return code

    return _verdict_code(status) if arguments.exit_code else 0


def _ready_code(status: Mapping[str, Any]) -> int:
    """The exit code for the checklists; of several models' that of the one least ready.

    Raises:
        LookupError, TypeError, ValueError: the status is not a sidecar's.
    """
    models = status["models"] if status["scrape"]["up"] else ()
    if any(model["speed"] is not None for model in models):
        return _SPECULATES

    checklists = [model["checklist"] for model in models]
    verdicts = {Readiness(one["verdict"]) for one in checklists if one is not None}
    least_ready_first = (
        Readiness.LEAVE_OFF,
        Readiness.INSUFFICIENT_DATA,
        Readiness.UNDECIDED,
        Readiness.TRY,
    )
    first = next((one for one in least_ready_first if one in verdicts), Readiness.INSUFFICIENT_DATA)
    return _READY[first]


def _verdict_code(status: Mapping[str, Any]) -> int:
    """The exit code for the worst verdict of a model; vLLM's last ones do not count if it is down.

    Raises:
        LookupError, TypeError: the status is not a sidecar's.
    """
    models = status["models"] if status["scrape"]["up"] else ()
    judged = [model["judgement"] for model in models]
    losing = [one for one in judged if one["verdict"] == Verdict.NET_NEGATIVE]
    is_measured = any(one["basis"] == Basis.SPEEDUP for one in losing)
    if is_measured or any(one["has_collapsed"] for one in judged):
        return _NET_NEGATIVE
    if not judged or any(one["verdict"] == Verdict.INSUFFICIENT_DATA for one in judged):
        return _NO_VERDICT
    return _UNDECIDED if losing else 0


def _hint(error: ScrapeError | None) -> str:
    if isinstance(error, BadStatus) and error.status == 401:
        return (
            "it asks for a password: put NAME:PASSWORD into a file and name it in --user-file or"
            f" {USER_FILE_VARIABLE}"
        )
    if error is not None and isinstance(error.__cause__, ssl.SSLError):
        return "is the CA of its certificate in --cacert, and its name in --url?"
    return "set --url to the address of a running sidecar, not of vLLM"
