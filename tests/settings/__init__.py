"""Django settings of the tests: one module per database, all based on `base`."""
