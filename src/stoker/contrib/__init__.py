"""Other task queues' APIs on top of Stoker, for projects that migrate from them."""
