"""`jaxcal.check`: suitable tests for any kind of predictions, one verdict, a report."""
