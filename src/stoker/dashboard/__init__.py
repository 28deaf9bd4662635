"""The dashboard: inspect and operate Stoker in the browser.

::

    path("stoker/", include("stoker.dashboard.urls"))

Pages (``pages/``) are rendered on the server, for users who have the permission (``views.py``). A
script fetches them again when something has changed (``live.py``) and replaces the parts that
differ. The script and the style sheet are served from here (``assets.py``), so nothing has to be
collected or built.
"""
