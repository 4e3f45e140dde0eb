"""The part of kustomize that deploy/kubernetes uses, for machines without kubectl.

test_deploy_kustomize.py compares it with the real one where that is there.
"""

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
_ORDER = {"ports": ("containerPort", "port")}
# The same language; in C, for the dashboards are long.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_KNOWN = {"apiVersion", "kind", "resources", "patches", "labels"}


def read(path: Path) -> dict:
    return yaml.load(path.read_text(), _LOADER)


def read_all(text: str) -> list[dict]:
    """Every document that is not empty."""
    return [one for one in yaml.load_all(text, _LOADER) if one]


def build(folder: Path) -> list[dict]:
    """The objects that ``kubectl kustomize FOLDER`` prints, in no particular order."""
    plan = read(folder / "kustomization.yaml")
    assert set(plan) <= _KNOWN, f"kustomize_tools does not know {set(plan) - _KNOWN}"
    objects: list[dict] = []
    for name in plan["resources"]:
        path = folder / name
        if path.is_dir():
            objects += build(path)
        else:
            objects += read_all(path.read_text())
    for patch in plan.get("patches", []):
        _apply(objects, read(folder / patch["path"]), patch.get("target"))
    for label in plan.get("labels", []):
        for one in objects:
            one["metadata"].setdefault("labels", {}).update(label["pairs"])
    return objects


def _apply(objects: list[dict], patch: list | dict, target: dict | None) -> None:
    wanted = target or {"kind": patch["kind"], "name": patch["metadata"]["name"]}
    found = [one for one in objects if _matches(one, wanted)]
    assert found, f"the patch for {wanted} meets nothing"
    for one in found:
        if isinstance(patch, list):
            for operation in patch:
                _operate(one, operation)
        else:
            name = one["metadata"]["name"]
            merged = merge(one, patch)
            merged["metadata"]["name"] = name
            one.clear()
            one.update(merged)


def _matches(one: dict, wanted: dict) -> bool:
    return one["kind"] == wanted["kind"] and bool(re.fullmatch(wanted["name"], one["metadata"]["name"]))


def merge(base: dict, patch: dict) -> dict:
    """A strategic merge: null deletes, mappings merge, lists with a key merge by it, the patch's items first."""
    merged = copy.deepcopy(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = merge(merged.get(key) or {}, value)
        elif isinstance(value, list) and (known_by := _merge_key(key, value)):
            merged[key] = _merge_lists(merged.get(key) or [], value, known_by)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def _merge_key(key: str, items: list) -> str | None:
    for candidate in _ORDER.get(key, ()):
        if items and isinstance(items[0], dict) and candidate in items[0]:
            return candidate
    return _MERGE_KEYS.get(key)


def _merge_lists(base: list[dict], patch: list[dict], known_by: str) -> list[dict]:
    existing = {item[known_by]: item for item in base}
    first = [merge(existing.pop(item[known_by], {}), item) for item in patch]
    return first + list(existing.values())


def _operate(document: dict, operation: dict) -> None:
    """One operation of a JSON patch: add, replace or test."""
    *steps, last = [int(step) if step.isdigit() else step for step in operation["path"].split("/")[1:]]
    place = document
    for step in steps:
        place = place[step]
    match operation["op"]:
        case "test":
            assert place[last] == operation["value"], operation
        case "replace":
            assert place[last] is not None
            place[last] = operation["value"]
        case "add" if last == "-":
            place.append(operation["value"])
        case other:
            raise AssertionError(f"kustomize_tools does not know {other} at {last}")
