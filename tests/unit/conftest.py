"""Settings for all unit tests."""

import hypothesis

# The time to find examples depends on chance and on the load of the machine.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
hypothesis.settings.load_profile("any machine")
