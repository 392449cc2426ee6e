"""The mechanisms inside other libraries. Nothing here is imported by the rest."""
