"""The laws of mechanisms."""
