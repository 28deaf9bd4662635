"""A feed importer: a Django project with one page and one task."""
