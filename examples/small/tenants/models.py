"""Tenants, their orders and their exports."""

from django.db import models


class Tenant(models.Model):
    """A customer with its own rows."""

    name = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.name


class Order(models.Model):
    """A sale of a tenant."""

    tenant = models.ForeignKey(Tenant, models.CASCADE)
    item = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.item


class Export(models.Model):
    """One run of an export, and its result."""

    tenant = models.ForeignKey(Tenant, models.CASCADE)
    items = models.CharField(max_length=200, default="")
    is_running = models.BooleanField(default=True)
    others = models.IntegerField()
    """Number of running exports of the same tenant when this one began."""

    def __str__(self) -> str:
        return f"export of {self.tenant}"
