"""Prompts of a wanted length: text before them that no prompt refers to."""

from collections.abc import Sequence
from typing import Final

from sidecar.errors import MeasurementError
from specdec_tools.measuring.client import Client
from specdec_tools.measuring.workload import BUILT_IN
from specdec_tools.outputs.replies import context_tokens

_BLOCK: Final = "\n".join(BUILT_IN) + "\n"
_MORE: Final = 1.02  # so that hardly any context is shorter than asked for


async def padded(
    client: Client, prompts: Sequence[str], tokens: int, concurrency: int
) -> tuple[str, ...]:
    """The prompts after so much text that each has at least about ``tokens``.

    The text is the same for all, so that a prefix cache computes it once.

    Raises:
        MeasurementError: a request fails, or the server does not say how long a prompt is.
    """
    one, three, *own = await context_tokens(client, (_BLOCK, 3 * _BLOCK, *prompts), concurrency)
    if one is None or three is None or three <= one or None in own:
        raise MeasurementError(
            f"{client.name}: the reply does not say how long the prompt is (usage.prompt_tokens),"
            " which --context needs"
        )

    shortest = min(length for length in own if length is not None)
    missing = _MORE * (tokens - shortest)
    if missing <= 0:
        return tuple(prompts)

    characters = round(missing / ((three - one) / 2) * len(_BLOCK))
    text = (_BLOCK * (characters // len(_BLOCK) + 1))[:characters]
    return tuple(f"{text}\n\n{prompt}" for prompt in prompts)
