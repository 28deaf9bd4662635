"""The dashboard: what is going on, and steering, in the browser.

::

    path("stoker/", include("stoker.dashboard.urls"))

Pages are made on the server (``pages/``), for whoever may see them (``door.py``). A script of our
own fetches them again when something has changed (``live.py``) and changes what differs. That
script and a style sheet are served from here (``assets.py``), so that nothing has to be collected,
built or fetched from elsewhere.
"""
