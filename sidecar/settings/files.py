"""The files that operators write: YAML, and whether they have changed."""

from pathlib import Path
from typing import Any, Final

import yaml

_MAX_BYTES: Final = 1024 * 1024
_TYPED: Final = {"tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"}
_NO_SETTINGS: Final = "expected at most 1 MiB, with one setting per line, as key: value"
Stamp = tuple[int, int, int] | None


class _Loader(yaml.SafeLoader):
    """Scalars stay text, as in the environment, so that pydantic reads both alike.

    Duplicate keys are errors.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own attribute
        first: [(tag, pattern) for tag, pattern in resolvers if tag in _TYPED]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"duplicate key {key.value[:80]!r}", problem_mark=key.start_mark
                )
            seen.add(key.value)

        return node


def stamp(path: Path) -> Stamp:
    """A value that changes with the file; None: no file.

    It also changes if a mounted Secret or ConfigMap swaps the link to the file.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a file of at most 1 MiB; an empty file holds an empty one.

    Raises:
        ValueError: there is none; the message says why.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ValueError(_NO_SETTINGS)

        # _Loader is a SafeLoader.
        values = yaml.load(content.decode(), _Loader)  # noqa: S506 - safe
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ValueError(f"line {line} is not valid YAML: {error.problem}") from None
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError):
        # Also for control characters and deeply nested brackets.
        raise ValueError("not valid YAML in UTF-8") from None

    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(_NO_SETTINGS)  # noqa: TRY004 - of the file, not of an argument
    return {str(key): value for key, value in values.items()}
