"""A broker as another process opens it, without the store in front of it."""

import os

from stoker.brokers.adapters import adapter_for
from stoker.brokers.arrivals import Arrivals
from stoker.brokers.contract import Broker
from stoker.brokers.dispatch import Dispatch
from stoker.brokers.orm.broker import OrmBroker
from stoker.brokers.transport import Transport
from stoker.conf import Settings

from tests.servers.sqs import CREDENTIALS


def bare_broker(settings: Settings) -> Broker | Dispatch:
    """Return the broker of the URL; for a transport, the broker that stores its messages."""
    os.environ.update(CREDENTIALS)  # the fork server may have started before they were set
    adapter = adapter_for(settings)
    if isinstance(adapter, Transport):
        store = OrmBroker(settings)
        return Dispatch(settings, store, Arrivals(adapter, store))
    return adapter
