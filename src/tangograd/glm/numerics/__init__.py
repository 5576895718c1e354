"""Numerical building blocks of generalised linear models: compilation, Gram matrices, hashing."""
