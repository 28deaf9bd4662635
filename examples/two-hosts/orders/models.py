"""What the jobs leave behind."""

from django.db import models


class Payment(models.Model):
    """Money that was taken. There is no unique index on the order on purpose."""

    order = models.IntegerField()
    host = models.CharField(max_length=20)

    def __str__(self) -> str:
        return f"order {self.order}, charged by {self.host}"


class Packing(models.Model):
    """Somebody began to pack a parcel; he may not have come to the end of it."""

    order = models.IntegerField()
    host = models.CharField(max_length=20)

    def __str__(self) -> str:
        return f"order {self.order}, packed by {self.host}"
