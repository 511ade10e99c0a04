"""What studies and tests compare with: known distributions, exact references, slower algorithms.

A script of a study finds it beside `runner`; pytest has this folder's parent on its path.
"""
