"""The paper's experiments: suites of trainings, their results beside the published ones, and what became of its claims.

`cells`: what there is to do; `published`: the paper's numbers; `results`: tables and claims of what was done.
"""
