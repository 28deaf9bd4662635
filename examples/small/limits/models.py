"""Records of the calls that the API received."""

from django.db import models


class Call(models.Model):
    """One call of the API."""

    customer = models.CharField(max_length=100)
    began_at = models.FloatField()

    def __str__(self) -> str:
        return self.customer
