"""The middleware as one file that needs only msgspec and the standard library, for vLLM's container.

PYTHONPATH=/specdec vllm serve … --middleware specdec_middleware.ObserveRequests
"""

import ast
from importlib.resources import files
from typing import Final

_MODULES: Final = (  # each after those from which it imports; no name is defined in two of them (a test)
    "record",
    "observe/endpoint",
    "observe/payload",
    "observe/stream",
    "observe/exchange_observer",
    "observe/usage_event",
    "observe/usage",
    "middleware/wire",
    "middleware/sender",
    "middleware/asking",
    "middleware/asgi",
)

_HEADER: Final = '''"""specdec-sidecar's middleware for vLLM, generated from its sources: do not edit.

    vllm serve … --middleware <this file's module name>.ObserveRequests

{usage}
"""
'''


def standalone_source() -> str:
    """The source of one module, under any file name, that has ``ObserveRequests``."""
    imports: set[str] = set()
    bodies: list[str] = []
    usage = ""
    for module in _MODULES:
        source = files("sidecar.requests").joinpath(f"{module}.py").read_text(encoding="utf-8")
        tree = ast.parse(source)
        usage = ast.get_docstring(tree) or ""  # of the last module, which is the one to load
        imports |= _outside_imports(tree)
        summary = usage.partition("\n")[0]
        bodies.append(f"# {module}.py: {summary}\n\n{_without_imports(source, tree)}")
    header = _HEADER.format(usage=usage)
    return "\n\n".join([header + "\n" + "\n".join(sorted(imports)), *bodies]) + "\n"


def _outside_imports(tree: ast.Module) -> set[str]:
    """The imports of everything but the project, one name per line."""
    lines: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            lines |= {f"import {alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("sidecar"):
            lines |= {f"from {node.module} import {alias.name}" for alias in node.names}
    return lines


def _without_imports(source: str, tree: ast.Module) -> str:
    """The module's text without its docstring and its imports."""
    lines = source.splitlines()
    for position, node in enumerate(tree.body):
        is_docstring = position == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_docstring or isinstance(node, ast.Import | ast.ImportFrom):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return "\n".join(lines).strip()
