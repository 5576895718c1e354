"""Tangent engines: the ways to run a model so that its outputs carry ``J v``.

:mod:`~tangograd.engines.passes` has the engines, :mod:`~tangograd.engines.lean` and
:mod:`~tangograd.engines.rules` make dual numbers without a graph of their tangents,
:mod:`~tangograd.engines.choice` how one is chosen and checked, and
:mod:`~tangograd.engines.block` what is open in a `tangents` block.
"""
