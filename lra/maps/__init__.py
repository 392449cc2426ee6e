"""Attention maps of trained models, drawn as figures."""
