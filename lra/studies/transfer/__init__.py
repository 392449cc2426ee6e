"""Trained weights in another mechanism: what it costs, before and after fine-tuning."""
