"""Repair predictions, with a certificate: confidence limits of the gain on other data."""
