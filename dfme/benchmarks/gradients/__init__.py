"""How good estimated gradients are, measured against the true ones of a teacher one owns.

The only place beyond ``teachers/`` that looks through the API: it is handed a ``WhiteBox``, and no method is.
"""
