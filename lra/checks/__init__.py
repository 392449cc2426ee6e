"""The checks that every mechanism passes."""
