"""Test calibration in O(n) by sums of moments times features; name and locate errors."""
