"""Modules of these tests that vLLM loads as its own plug-ins."""

import shutil
from pathlib import Path

SYNTHETIC_ACCEPTANCE = Path(__file__).parent / "synthetic_acceptance.py"


def install(plugin, folder):
    """Copies a module to where vLLM finds it; returns the environment in which vLLM does.

    vLLM calls the module's function ``register``. ``folder`` is made.
    """
    name = plugin.stem
    package = folder / f"{name}-0.dist-info"
    package.mkdir(parents=True)
    shutil.copy(plugin, folder)

    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    entry = f"[vllm.general_plugins]\n{name} = {name}:register\n"
    (package / "entry_points.txt").write_text(entry)
    return {"PYTHONPATH": str(folder)}
