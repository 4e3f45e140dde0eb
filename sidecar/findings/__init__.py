"""Why speculation loses, or what would make it gain more: one module a finding.

Each has the finding's evidence as typed fields and its gate, which reads a model's report, and
below a line what is said of it. ``catalog.py`` lists all of them, in the order in which they are
told. What several share is in ``ending.py``, ``group.py`` and ``lower_acceptance.py``, and what all
are made of in ``finding.py``, ``kind.py``, ``explanation.py`` and ``paste.py``.
"""
