"""Trained weights in another mechanism: the loss of accuracy before and after fine-tuning."""
