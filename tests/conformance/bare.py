"""A broker as another process has it, without the store in front of it."""

import os

from stoker.brokers.adapters import adapter_for
from stoker.brokers.carried import CarriedBroker
from stoker.brokers.contract import Broker
from stoker.brokers.transport import Transport
from stoker.conf import Settings

from tests.servers.sqs import CREDENTIALS


def bare_broker(settings: Settings) -> Broker:
    """What the URL names; what only brings messages, with the store that they are brought to."""
    os.environ.update(CREDENTIALS)  # the process this one is forked from may be older than they
    adapter = adapter_for(settings)
    return CarriedBroker(settings, adapter) if isinstance(adapter, Transport) else adapter
