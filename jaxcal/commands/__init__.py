"""What `python -m jaxcal` needs. Nothing is imported here: the command line starts without JAX."""
