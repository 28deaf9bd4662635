"""A program: transactions that read first and then write, while others do the same.

    python -m tests.integration.read_then_write ACCOUNT TRANSACTIONS

Prints how many transactions met an error.
"""

import sys

import django


def main(account_id: int, transactions: int) -> None:
    django.setup()
    from django.db import OperationalError, transaction

    from tests.app.models import Account
    from tests.app.tasks import nothing

    errors = 0
    for _ in range(transactions):
        try:
            with transaction.atomic():
                account = Account.objects.get(pk=account_id)
                account.total += 1
                account.save()
                nothing.enqueue()
        except OperationalError:
            errors += 1
    print(errors)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
