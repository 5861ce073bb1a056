"""HTTP routes, one module per family; each has ``register(app, service)``."""
