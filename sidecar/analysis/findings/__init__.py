"""Why speculation loses, or what would make it gain more: one module a finding, or a few kin.

``catalog.py`` lists them all. A finding carries its evidence as typed fields and has no sentences:
``sidecar/wording/findings/`` has those.
"""
