"""The bodies of ``tangograd fit`` and ``tangograd predict``."""
