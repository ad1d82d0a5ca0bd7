"""A teacher served over the Open Inference Protocol: the owner's side, for rehearsing an audit."""
