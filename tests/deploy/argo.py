"""The analysis that deploy/rollouts ships, and what Argo Rollouts concludes from it."""

from enum import StrEnum

import yaml

from tests.deploy.deploy_tools import DEPLOY

FOLDER = DEPLOY / "rollouts"
RULES = FOLDER / "rules.yaml"
VERDICT = "version:specdec_rollout:verdict"


class Phase(StrEnum):
    """What Argo says of a measurement."""

    SUCCESSFUL = "Successful"
    FAILED = "Failed"
    INCONCLUSIVE = "Inconclusive"


def template():
    return yaml.safe_load((FOLDER / "analysis-template.yaml").read_text())


def metrics():
    """The template's metrics by name."""
    return {metric["name"]: metric for metric in template()["spec"]["metrics"]}


def queries(namespace="n", model="m", canary="canary"):
    """The query of each metric, with the arguments that Argo would fill in."""
    arguments = {"namespace": namespace, "model-name": model, "canary-hash": canary}
    found = {}
    for name, metric in metrics().items():
        query = metric["provider"]["prometheus"]["query"]
        for argument, value in arguments.items():
            query = query.replace(f"{{{{args.{argument}}}}}", value)
        assert "{{" not in query
        found[name] = query
    return found


def phase(metric, values):
    """What Argo makes of a query's values by the metric's conditions: a failure counts first."""
    if _holds(metric["failureCondition"], values):
        return Phase.FAILED
    if _holds(metric["successCondition"], values):
        return Phase.SUCCESSFUL
    return Phase.INCONCLUSIVE


def _holds(condition, values):
    """Whether a condition holds; but for its operators, Argo's language is Python's here."""
    return eval(condition.replace("&&", "and"), {"len": len}, {"result": values})
