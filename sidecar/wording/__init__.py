"""The sentences that the page, ``report``, the log and the push share.

They say what the report's codes and numbers mean.
"""
