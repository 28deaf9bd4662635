"""A page that shows the progress of a job while it runs, with htmx."""
