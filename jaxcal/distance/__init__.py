"""Distance from calibration of binary predictions."""
