"""Tenants, their orders and their exports."""

from django.db import models


class Tenant(models.Model):
    """A customer with rows of its own."""

    name = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.name


class Order(models.Model):
    """What a tenant has sold."""

    tenant = models.ForeignKey(Tenant, models.CASCADE)
    item = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.item


class Export(models.Model):
    """One run of an export, and what it found."""

    tenant = models.ForeignKey(Tenant, models.CASCADE)
    items = models.CharField(max_length=200, default="")
    is_running = models.BooleanField(default=True)
    others = models.IntegerField()
    """How many exports of the same tenant ran when this one began."""

    def __str__(self) -> str:
        return f"export of {self.tenant}"
