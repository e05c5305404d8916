"""Settings that all tests share."""

from hypothesis import HealthCheck, settings

# A busy machine is slow, and no test may fail for that.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
