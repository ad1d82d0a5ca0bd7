"""A drill: an attack on one's own service, while somebody listens at its alarm channel."""
