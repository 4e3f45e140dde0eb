"""The few shapes that the rules' expressions are made of."""

POD = "cluster, namespace, job, instance"  # what tells one sidecar from another, wherever its series ended up
FLEET = "cluster, namespace, model_name"  # one model's pods; the same name in another namespace is another's


def threshold(name: str) -> str:
    """The pod's own value of a setting."""
    return f'specdec_threshold{{name="{name}"}}'


def compared(series: str, operator: str, name: str) -> str:
    """A pod's series compared with the pod's own threshold; what holds is left, with its own value."""
    return f"{series} {operator} on ({POD}) group_left () {threshold(name)}"


def rate(metric: str, window: str, without: str) -> str:
    """A counter's growth per second, added up over the labels in ``without``."""
    return f"sum without ({without}) (rate({metric}[{window}]))"


def growth(metric: str, window: str, without: str) -> str:
    """A counter's growth in the window, added up over the labels in ``without``."""
    return f"sum without ({without}) (increase({metric}[{window}]))"


def both(*parts: str) -> str:
    """Where all hold; the value is the first one's."""
    return "\nand ".join(parts)
