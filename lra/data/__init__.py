"""The batches of a task, the form of its data on the disk, and the interface of a data source."""
