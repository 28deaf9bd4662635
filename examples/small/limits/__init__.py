"""An API that accepts five calls per second and two at a time, and one job per customer."""
