"""Django settings of the tests: one module per database, all of them on top of `base`."""
