"""Trained models: restored from their run directories, and scored on fresh examples of generated tasks."""
