"""A broker as another process has it, without the store in front of it."""

from stoker.brokers import adapter_for
from stoker.brokers.base import Broker
from stoker.brokers.carried import CarriedBroker
from stoker.brokers.transport import Transport
from stoker.conf import Settings


def bare_broker(settings: Settings) -> Broker:
    """What the URL names; what only brings messages, with the store that they are brought to."""
    adapter = adapter_for(settings)
    return CarriedBroker(settings, adapter) if isinstance(adapter, Transport) else adapter
