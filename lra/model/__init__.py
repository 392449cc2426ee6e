"""The encoder around a mechanism: embedding, projections, blocks, heads, pretraining."""
