"""Orders and charges."""

from django.db import models


class Order(models.Model):
    """An order of a customer."""

    item = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.item


class Charge(models.Model):
    """Money charged for an order."""

    order = models.ForeignKey(Order, models.CASCADE)

    def __str__(self) -> str:
        return f"charge for {self.order}"
