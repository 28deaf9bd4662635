"""What the tests of units share."""

import hypothesis

# How long it takes to find examples is a matter of chance, and of what else the machine has to do.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
hypothesis.settings.load_profile("any machine")
