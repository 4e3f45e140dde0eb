"""Files that operators write: YAML, and whether they have changed."""

from pathlib import Path
from typing import Any

import yaml

_MAX_BYTES = 1024 * 1024
_TYPED = {"tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"}
Stamp = tuple[int, int, int] | None


class _Loader(yaml.SafeLoader):
    """Scalars stay text, as in the environment, so that pydantic reads both alike; duplicate keys are errors."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own attribute
        first: [(tag, pattern) for tag, pattern in resolvers if tag in _TYPED]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"duplicate key {key.value[:80]!r}", problem_mark=key.start_mark)
            seen.add(key.value)
        return node


def stamp(path: Path) -> Stamp:
    """A value that changes with the file, also if a mounted Secret or ConfigMap swaps the link to it; None: no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a file of at most 1 MiB; an empty file holds an empty one.

    Raises:
        ValueError: there is none; the message says why.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        values = yaml.load(content.decode(), _Loader)  # noqa: S506 - _Loader is a SafeLoader
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ValueError(f"line {line} is not valid YAML: {error.problem}") from None
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError):  # control characters, deeply nested brackets
        raise ValueError("not valid YAML in UTF-8") from None
    if len(content) > _MAX_BYTES or not isinstance(values, dict | None):
        raise ValueError("expected at most 1 MiB, with one setting per line, as key: value")
    return {str(key): value for key, value in (values or {}).items()}
