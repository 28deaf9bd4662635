"""Orders, and what was charged for them."""

from django.db import models


class Order(models.Model):
    """What a customer has ordered."""

    item = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.item


class Charge(models.Model):
    """Money taken for an order."""

    order = models.ForeignKey(Order, models.CASCADE)

    def __str__(self) -> str:
        return f"charge for {self.order}"
