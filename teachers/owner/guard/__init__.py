"""``dfme.Guard``: defences, a watch, limits and counts before any ASGI app that answers scores."""
