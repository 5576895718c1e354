"""Summaries, metrics, pictures and pages of fitted models."""
