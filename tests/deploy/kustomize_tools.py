"""The part of kustomize that deploy/ uses, for machines without kubectl; test_helm.py compares it with the real one."""

import copy
import re
from pathlib import Path

import yaml

# What an item of a list is known by, as in Kubernetes' API; a list of anything else is replaced as a whole.
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
}
# The same language; in C, for the dashboards are long.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(path: Path) -> dict:
    return yaml.load(path.read_text(), _LOADER)


def read_all(text: str) -> list[dict]:
    """Every document that is not empty."""
    return [one for one in yaml.load_all(text, _LOADER) if one]


def build(folder: Path, objects: list[dict] | None = None) -> list[dict]:
    """What ``kubectl kustomize FOLDER`` prints, in no particular order; ``objects`` take the place of its resources."""
    plan = read(folder / "kustomization.yaml")
    assert set(plan) <= {"apiVersion", "kind", "resources", "patches"}
    if objects is None:
        objects = [one for name in plan["resources"] for one in _resource(folder / name)]
    for patch in plan.get("patches", []):
        content = read(folder / patch["path"])
        wanted = patch.get("target") or {"kind": content["kind"], "name": content["metadata"]["name"]}
        found = [one for one in objects if _matches(one, wanted)]
        assert found, f"the patch for {wanted} meets nothing"
        for one in found:
            one["spec"] = merge(one["spec"], content["spec"])
    return objects


def _resource(path: Path) -> list[dict]:
    return build(path) if path.is_dir() else read_all(path.read_text())


def _matches(one: dict, wanted: dict) -> bool:
    return one["kind"] == wanted["kind"] and bool(re.fullmatch(wanted["name"], one["metadata"]["name"]))


def merge(base: dict, patch: dict) -> dict:
    """A strategic merge: mappings merge, lists with a key merge by it, the patch's items first."""
    merged = copy.deepcopy(base)
    for key, value in patch.items():
        if isinstance(value, dict):
            merged[key] = merge(merged.get(key) or {}, value)
        elif key in _MERGE_KEYS:
            merged[key] = _merge_lists(merged.get(key) or [], value, _MERGE_KEYS[key])
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def _merge_lists(base: list[dict], patch: list[dict], known_by: str) -> list[dict]:
    existing = {item[known_by]: item for item in base}
    first = [merge(existing.pop(item[known_by], {}), item) for item in patch]
    return first + list(existing.values())
