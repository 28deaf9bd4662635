"""An API that takes five calls a second and two at a time, and one job for each customer."""
