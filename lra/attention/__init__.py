"""The mechanisms, a class each, and the contract that they keep (``base``)."""
