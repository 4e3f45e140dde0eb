"""Reads a model's ``config.json``."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from sidecar.commands.arguments import read_input
from sidecar.errors import InputError
from sidecar.sizes.fields import ModelFields, fields_of

MOST_BYTES: Final = 16 * 1024 * 1024
"""Of a ``config.json``, and of the index beside it."""


def read_fields(file: Path) -> ModelFields:
    """The fields of a ``config.json``; those of the language model where it nests them.

    Raises:
        InputError: it cannot be read, or is not the configuration of a decoder.
    """
    try:
        return fields_of(_flat(json.loads(read_input(file, MOST_BYTES))))
    except ValidationError as error:
        missing = ", ".join(str(one["loc"][-1]) for one in error.errors())
        raise InputError(f"{file}: not a decoder's config.json ({missing})") from None
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{file}: not a JSON object") from None


def _flat(read: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without the nulls, which mean an absent field.

    Models that see images nest the language model's fields.
    """
    nested = read.get("text_config") or read.get("llm_config") or {}
    merged = {**read, **nested}
    return {name: value for name, value in merged.items() if value is not None}
