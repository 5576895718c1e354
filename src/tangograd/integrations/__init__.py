"""Adapters for frameworks that run the training loop, where one is needed.

* :mod:`tangograd.integrations.hugging_face`: a ``Trainer`` whose loss is a likelihood;
* :mod:`tangograd.integrations.skorch`: a mixin for its networks.

Lightning and Accelerate need none. The frameworks are not dependencies: import the module of yours.
"""
