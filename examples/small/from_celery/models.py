"""The model that a task of the project reads."""

from django.db import models


class Payment(models.Model):
    """A payment that has arrived."""

    customer = models.CharField(max_length=100)

    def __str__(self) -> str:
        return f"payment of {self.customer}"
