"""Pathfinder images."""

from .images import generate

__all__ = ["generate"]
