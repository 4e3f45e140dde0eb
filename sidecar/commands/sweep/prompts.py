"""What a sweep asks: prompts from a file, or a few of its own of different kinds."""

import json
from pathlib import Path
from typing import Final

from sidecar.errors import SpecDecError

_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST_PROMPTS: Final = 10_000
_KEYS: Final = ("prompt", "text", "question", "input")

BUILT_IN: Final = (
    "Write a Python function that returns the n-th Fibonacci number, with a docstring and two examples.",
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


class PromptsError(SpecDecError):
    """A file of prompts can't be used; the message names the line, and never says what is in it."""


def read_prompts(path: Path) -> tuple[str, ...]:
    """The prompts of a file: one a line, or in each line a JSON string or an object with a ``prompt``.

    Raises:
        PromptsError: the file can't be read, is too large, or a line that begins as JSON is none.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        lines = data.decode().splitlines()
    except OSError as error:
        raise PromptsError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise PromptsError(f"{path}: not UTF-8 text") from None
    if len(data) > _MOST_BYTES:
        raise PromptsError(f"{path}: over {_MOST_BYTES // 1024 // 1024} MiB; take fewer prompts")
    prompts = [_prompt(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not 1 <= len(prompts) <= _MOST_PROMPTS:
        raise PromptsError(f"{path}: {len(prompts)} prompts; write 1 to {_MOST_PROMPTS:,}")
    return tuple(prompts)


def _prompt(line: str, place: str) -> str:
    if not line.lstrip().startswith(("{", '"')):
        return line.strip()
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        if line.lstrip().startswith('"'):
            return line.strip()  # a sentence that begins with a quotation
        raise PromptsError(f"{place}: not JSON, though it begins with a brace") from None
    if isinstance(found, dict):
        found = next((found[key] for key in _KEYS if key in found), None)
    if not isinstance(found, str) or not found.strip():
        raise PromptsError(f"{place}: no text under any of {', '.join(_KEYS)}")
    return found
