"""Teachers that are services: one attempt at a request. Charging, retries and pace are the
oracle's.
"""
