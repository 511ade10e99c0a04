"""Kernel Stein tests of calibration (`kccsd_test`) and of fit (`kcsd_test`, `ksd_test`)."""
