"""YAML that is read strictly: scalars stay text, and duplicate keys are errors."""

from typing import Any, Final

import yaml

_TYPED: Final = {"tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"}


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


def parsed(content: bytes) -> Any:
    """The contents of a YAML document: texts, None, lists and mappings.

    Raises:
        ValueError: it is not valid YAML in UTF-8; the message says why.
    """
    try:
        # _Loader is a SafeLoader.
        return yaml.load(content.decode(), _Loader)  # noqa: S506 - safe
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ValueError(f"line {line} is not valid YAML: {error.problem}") from None
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError):
        # Control characters, or brackets that are nested too deeply, end up here as well.
        raise ValueError("not valid YAML in UTF-8") from None
