"""The batches of a task, the stored form of its data, and the contract of a source of them."""
