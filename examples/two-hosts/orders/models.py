"""Records of what the jobs did."""

from django.db import models


class Payment(models.Model):
    """Money charged for an order. On purpose there is no unique index on the order."""

    order = models.IntegerField()
    host = models.CharField(max_length=20)

    def __str__(self) -> str:
        return f"order {self.order}, charged by {self.host}"


class Packing(models.Model):
    """A parcel whose packing was started, and perhaps not finished."""

    order = models.IntegerField()
    host = models.CharField(max_length=20)

    def __str__(self) -> str:
        return f"order {self.order}, packed by {self.host}"
