"""Pathfinder images."""

from .generator import generate

__all__ = ["generate"]
