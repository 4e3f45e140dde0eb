"""Why speculation loses, or what would make it gain more: one module a finding, or a few kin.

``registry.py`` has all of them, and ``catalog.py`` puts those on a model in order. A finding
carries its evidence as typed fields and has no sentences: ``sidecar/wording/findings/`` has those.
"""
