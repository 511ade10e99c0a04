"""CKCE."""
